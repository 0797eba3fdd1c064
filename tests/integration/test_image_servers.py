"""More families of models that see, over HTTP: tokens equal `generate` of transformers (MM-1).

Qwen3-VL adds an image to several layers, Idefics 3 has other tokens between the tiles of one, and in Gemma 3 the tokens
of an image see one another. Two prompts are computed at a time, in chunks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import vision_models
from server_process import ForkedServer

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(180)]
LENGTH = 8
WIDE, HIGH = vision_models.picture(1, 24, 60), vision_models.picture(2, 60, 16)
CHATS = {
    "two": ("what is in", WIDE, "and", HIGH, "?"),
    "swapped": ("what is in", HIGH, "and", WIDE, "?"),
    "one": (WIDE, "describe a cat"),
    "text": ("what is a cat",),
}
BUDGETS = {"qwen3_vl": 16, "idefics3": 16, "gemma3": 24}


class Served:
    """A family, the answers of `generate` to each chat, and a server of it."""

    def __init__(self, family, folder):
        model = vision_models.write(folder, family)
        expected = vision_models.expected
        if vision_models.PROCESSORS[family][1] is not None:
            expected = vision_models.expected_of_processor
        self.family = family
        self.wanted = {
            name: (vision_models.expected if name == "text" else expected)(
                folder, model, parts, LENGTH
            )
            for name, parts in CHATS.items()
        }
        settings = {
            "max-images": 2, "max-num-batched-tokens": BUDGETS[family], "max-num-seqs": 4, "block-size": 8,
            "dtype": "float32", "device": "cpu", "load-format": "auto", "max-model-len": 256,
            # Decoding in a process of its own, which imports everything anew, is tested with one family.
            "io-processor-option": "image_processor=prepared_images:Prepared",
        }  # fmt: skip
        arguments = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        self.server = ForkedServer(folder, *arguments).ready()
        self.client = self.server.client()

    def ask(self, name, **options):
        return self.client.chat.completions.create(
            model="tiny", messages=vision_models.chat(*CHATS[name]), temperature=0, max_tokens=LENGTH,
            extra_body={"ignore_eos": True, "return_token_ids": True}, **options,
        )  # fmt: skip


@pytest.fixture(scope="module", params=BUDGETS)
def served(request, tmp_path_factory):
    vision_models.skip_without_torchvision(request.param)
    found = Served(request.param, tmp_path_factory.mktemp(request.param))
    yield found
    found.server.close()


@pytest.mark.nightly_after(1)
def test_tokens_equal_generate_and_images_are_shared(served):
    with ThreadPoolExecutor(2) as threads:
        answers = dict(zip(CHATS, threads.map(served.ask, CHATS), strict=True))
    for name, answer in answers.items():
        prompt, tokens = served.wanted[name]
        assert answer.usage.prompt_tokens == len(prompt), name
        assert answer.choices[0].model_extra["token_ids"] == tokens, name
    again = served.ask("two")
    assert again.choices[0].model_extra["token_ids"] == served.wanted["two"][1]
    least = len(served.wanted["two"][0]) - 16
    assert again.usage.prompt_tokens_details.cached_tokens >= least


@pytest.mark.nightly_after(1)
def test_a_stream_says_the_same(served):
    chunks = served.ask("swapped", stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == served.ask("swapped").choices[0].message.content
