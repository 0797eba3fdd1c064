"""Images in chats over HTTP: tokens equal `generate` of transformers, and bad images are rejected (MM-1)."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import struct
import zlib
from pathlib import Path

import anthropic
import httpx
import openai
import psutil
import pytest
import vision_models
from server_process import ForkedServer

from tenonry_testkit.roles import eventually

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(180)]
LENGTH = 8
KEY = "operator"
AUTHORIZED = {"authorization": f"Bearer {KEY}"}
CAT, DOG = vision_models.picture(1), vision_models.picture(2, 40, 16)
CHATS = {
    "two": ("what is in", CAT, "and", DOG, "?"),
    "swapped": ("what is in", DOG, "and", CAT, "?"),
    "one": (CAT, "describe a cat"),
    "text": ("what is a cat",),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("qwen2_vl")


@pytest.fixture(scope="module")
def wanted(folder):
    """The prompt's ids and the answer's, of each chat."""
    model = vision_models.write(folder, "qwen2_vl")
    return {
        name: vision_models.expected(folder, model, parts, LENGTH) for name, parts in CHATS.items()
    }


@pytest.fixture(scope="module")
def server(folder, wanted):
    """Two API servers in front of one engine of two ranks. Prompts are cut into chunks of 16 tokens, so images are cut,
    too.
    """
    settings = {
        "max-images": 2, "max-num-batched-tokens": 16, "max-num-seqs": 8, "block-size": 16, "dtype": "float32",
        "device": "cpu", "load-format": "auto", "max-model-len": 256, "io-processor-option": "max_image_pixels=10000",
        "api-server-count": 2, "tensor-parallel-size": 2,
    }  # fmt: skip
    operators = ["--enable-operator-routes", "--api-key", KEY]
    arguments = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    server = ForkedServer(folder, *arguments, *operators).ready()
    yield server
    server.close()


def ask(server, *parts, **options):
    return server.client(KEY).chat.completions.create(
        model="tiny", messages=vision_models.chat(*parts), temperature=0, max_tokens=LENGTH,
        extra_body={"ignore_eos": True, "return_token_ids": True}, **options,
    )  # fmt: skip


def tokens(answer):
    return answer.choices[0].model_extra["token_ids"]


def test_tokens_equal_generate(server, wanted):
    for name, parts in CHATS.items():
        answer = ask(server, *parts)
        assert answer.usage.prompt_tokens == len(wanted[name][0]), name
        assert tokens(answer) == wanted[name][1], name


def test_a_stream_says_the_same(server, wanted):
    chunks = ask(server, *CHATS["one"], stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ask(server, *CHATS["one"]).choices[0].message.content


def test_the_same_images_share_blocks_and_others_never_do(server, wanted):
    text = "user : describe"
    first = ask(server, text, CAT, "and", DOG, "?", "is a cat in")
    again = ask(server, text, CAT, "and", DOG, "?", "is a cat in")
    other = ask(server, text, DOG, "and", CAT, "?", "is a cat in")
    cached = [each.usage.prompt_tokens_details.cached_tokens for each in (first, again, other)]
    assert cached == [0, 32, 0]
    assert tokens(first) == tokens(again)


def png_bomb(width, height):
    """A file of a few bytes that declares this many pixels."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(64))),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


@pytest.fixture(scope="module")
def words_of(folder):
    """The words of tokens up to an end, as routes that have no `ignore_eos` show them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def words(tokens):
        end = tokens.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in tokens else None
        return tokenizer.decode(tokens[:end], skip_special_tokens=True).split()

    return words


def anthropic_block(part):
    if isinstance(part, str):
        return {"type": "text", "text": part}
    data = vision_models.data_url(part).partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    return {"type": "image", "source": source}


def responses_part(part):
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    return {"type": "input_image", "image_url": vision_models.data_url(part), "detail": "auto"}


@pytest.mark.parametrize("name", ["two", "swapped", "one"])
def test_the_other_protocols_show_images_too(server, wanted, words_of, name):
    prompt, answer = wanted[name]
    content = [responses_part(part) for part in CHATS[name]]
    response = server.client(KEY).responses.create(
        model="tiny", input=[{"role": "user", "content": content}], temperature=0, max_output_tokens=LENGTH
    )  # fmt: skip
    assert response.output_text.split() == words_of(answer)
    assert response.usage.input_tokens == len(prompt)
    messages = [{"role": "user", "content": [anthropic_block(part) for part in CHATS[name]]}]
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as claude:
        counted = claude.messages.count_tokens(model="tiny", messages=messages)
        message = claude.messages.create(
            model="tiny", messages=messages, max_tokens=LENGTH, extra_body={"temperature": 0}
        )
    assert "".join(block.text for block in message.content).split() == words_of(answer)
    assert counted.input_tokens == len(prompt)


def test_the_other_protocols_refuse_a_bad_image_in_their_own_shape(server):
    bomb = url(png_bomb(60000, 60000))
    image = {"type": "input_image", "image_url": bomb, "detail": "auto"}
    with pytest.raises(openai.BadRequestError, match="60000 pixels; at most 10000"):
        server.client(KEY).responses.create(
            model="tiny", input=[{"role": "user", "content": [image]}]
        )
    block = {"type": "image", "source": {"type": "url", "url": "https://169.254.169.254/a.png"}}
    with (
        anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as claude,
        pytest.raises(anthropic.BadRequestError, match=r"not read from .169\.254\.169\.254"),
    ):
        claude.messages.create(
            model="tiny", max_tokens=1, messages=[{"role": "user", "content": [block]}]
        )


def url(data, kind="png"):
    return f"data:image/{kind};base64," + base64.b64encode(data).decode()


def cut_png():
    buffer = io.BytesIO()
    CAT.save(buffer, "PNG")
    return buffer.getvalue()[:900]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (url(png_bomb(60000, 60000)), "60000 × 60000 pixels; at most 10000"),
        (url(b"<svg></svg>", "svg+xml"), "it is SVG; send one of PNG, JPEG"),
        (url(cut_png()), "PNG data are damaged"),
        ("data:image/png;base64,%%%", "no base64"),
        ("https://169.254.169.254/latest/meta-data", "not read from '169.254.169.254'.*: none"),
        ("http://example.com/a.png", "a data: URL, or an https: URL"),
        ("file:///etc/passwd", "a data: URL, or an https: URL"),
    ],
)
def test_a_bad_image_is_a_400_that_names_the_part(server, bad, reason):
    content = [{"type": "image_url", "image_url": {"url": bad}}]
    with pytest.raises(openai.BadRequestError, match=reason) as raised:
        server.client(KEY).chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": content}]
        )
    assert raised.value.param == "messages[0].content[0].image_url"
    assert " at 0x" not in str(raised.value)


def test_more_images_than_the_setting_allows_and_places_without_images_are_refused(server):
    with pytest.raises(openai.BadRequestError, match="more than max_images=2 images"):
        ask(server, CAT, CAT, CAT)
    with pytest.raises(openai.BadRequestError, match=r"2 places for images.* and 1 images"):
        ask(server, "<|image_pad|>", CAT)


def test_an_image_part_needs_its_url(server):
    body = {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=AUTHORIZED)
    assert answer.status_code == 400
    assert "without image_url" in answer.text


class OnOneServer:
    """A client on one connection, which one of the API servers holds."""

    def __init__(self, server):
        host, port = server.url.removeprefix("http://").split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=30)
        self.connection.connect()
        self.port = self.connection.sock.getsockname()[1]

    def name(self, pids):
        for name, pid in pids.items():
            if name.startswith("api-server"):
                for found in psutil.Process(pid).net_connections("tcp"):
                    if found.raddr and found.raddr.port == self.port:
                        return name
        return ""

    def get(self, path):
        self.connection.request("GET", path)
        answer = self.connection.getresponse()
        answer.read()
        assert answer.status == 200

    def post(self, path, body):
        headers = AUTHORIZED | {"content-type": "application/json"}
        self.connection.request("POST", path, json.dumps(body), headers)
        answer = self.connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return json.loads(text or "{}")

    def tokens(self, name):
        body = {
            "model": "tiny", "messages": vision_models.chat(*CHATS[name]), "temperature": 0, "max_tokens": LENGTH,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        return self.post("/v1/chat/completions", body)["choices"][0]["token_ids"]


@pytest.fixture
def both(server):
    """A client of each API server. On a busy machine one of them may take up many connections in a row."""
    pids = server.pids()
    found = {}
    with contextlib.ExitStack() as opened:

        def both_found():
            client = OnOneServer(server)
            opened.callback(client.connection.close)
            client.get("/health")  # the connection was taken up
            found.setdefault(client.name(pids), client)
            return len(found) == 2

        eventually(both_found)
        assert set(found) == {"api-server 1", "api-server 2"}
        yield list(found.values())


def test_each_api_server_and_the_engine_keep_images_of_their_own(both, wanted):
    """The same images by either one, interleaved, and after one of them had the engine drop its images."""
    first, second = both
    for name in ("two", "swapped", "one"):
        for client in (first, second, first):
            assert client.tokens(name) == wanted[name][1]
    first.post("/reset_mm_cache", {})
    first.post("/reset_prefix_cache", {})  # so that the images are computed again
    for name in ("one", "swapped", "two"):
        for client in (second, first, second):
            assert client.tokens(name) == wanted[name][1]


def test_images_that_were_forgotten_are_encoded_again(server, wanted):
    assert (
        httpx.post(server.url + "/reset_mm_cache", json={}, headers=AUTHORIZED).status_code == 200
    )
    assert tokens(ask(server, *CHATS["two"])) == wanted["two"][1]


def test_the_server_serves_on_after_all_that(server, wanted):
    assert tokens(ask(server, *CHATS["two"])) == wanted["two"][1]


def test_the_example_of_the_page_works(server):
    page = (Path(__file__).parents[2] / "docs/how-to/show-images.md").read_text("utf-8")
    source = page.split("```python\n")[1].split("```")[0]
    names = {}
    exec(compile(source, "show-images.md", "exec"), names)
    buffer = io.BytesIO()
    CAT.save(buffer, "PNG")
    answer = names["ask"](server.client(KEY), "what is in", buffer.getvalue())
    assert answer == ask(server, "what is in", CAT).choices[0].message.content
