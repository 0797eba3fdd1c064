"""Log-probabilities contain the offset and the bytes of each token, for any split of the answer."""

from __future__ import annotations

import itertools
import json

import msgspec
import numpy as np
import pytest
from openai_server_fakes import CharacterIO

from tenonry.config import EngineConfig
from tenonry.info import ModelInfo
from tenonry.interfaces.io_processor import IOProcessorContext, ProcessedPrompt
from tenonry.outputs import CompletionOutput, Logprob, RequestOutput
from tenonry_openai_server.protocol.chunks import ChatChunks, CompletionChunks
from tenonry_openai_server.protocol.complete import chat_response, completion_response
from tenonry_openai_server.protocol.logprobs import chat_logprobs
from tenonry_openai_server.protocol.options import ResponseContext, ResponseOptions
from tenonry_openai_server.protocol.tokens import TextOffsets, TokenTexts

SPECIAL = 256


class ByteIO(CharacterIO):
    """A token is a byte; token 256 is special."""

    def process_prompt(self, prompt, params, *, add_special_tokens=True):
        ids = np.frombuffer(prompt.text.encode(), np.uint8)
        return ProcessedPrompt(token_ids=ids, text=prompt.text)

    bytes_calls = 0

    def token_bytes(self, token_ids, *, skip_special_tokens=False):
        self.bytes_calls += 1
        special = b"" if skip_special_tokens else b"<s>"
        return [special if i == SPECIAL else bytes([i]) for i in token_ids]

    def decode(self, token_ids, *, skip_special_tokens=False):
        pieces = self.token_bytes(token_ids, skip_special_tokens=skip_special_tokens)
        return b"".join(pieces).decode(errors="replace")


@pytest.fixture
def io_processor():
    model = ModelInfo(name="m", path="", architecture="A", max_model_len=99, vocab_size=257)
    return ByteIO(IOProcessorContext(EngineConfig(model="m"), model))


@pytest.fixture
def make_context(io_processor):
    def make(**options) -> ResponseContext:
        return ResponseContext("id", 1, "m", ResponseOptions(**options), TokenTexts(io_processor))

    return make


def output(text: str, token_ids: list[int], *, last: bool, prompt: str = "ab") -> RequestOutput:
    logprobs = [{i: Logprob(-0.5, 1)} for i in token_ids]
    reason = "stop" if last else None
    completion = CompletionOutput(0, text, token_ids, reason, logprobs=logprobs)
    prompt_ids = [SPECIAL, *prompt.encode()]
    prompt_logprobs = [None, *({i: Logprob(-0.25, 1)} for i in prompt_ids[1:])]
    return RequestOutput(
        "id", prompt, prompt_ids, [completion], last, prompt_logprobs=prompt_logprobs
    )


def cuts(text: str, token_ids: list[int], held: int, bounds: tuple[int, ...]):
    """The outputs of a stream cut behind `bounds` tokens, whose last `held` characters come with the end."""
    shown = 0
    for first, behind in itertools.pairwise((0, *bounds, len(token_ids))):
        last = behind == len(token_ids)
        whole = bytes(token_ids[:behind]).decode(errors="ignore")
        until = len(text) if last else max(len(whole) - held, shown)
        yield output(text[shown:until], token_ids[first:behind], last=last)
        shown = until


def streamed(events: list[bytes]) -> list[dict]:
    lines = b"".join(events).decode().split("\n\n")
    return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines if line]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("held", [0, 1, 3])
@pytest.mark.parametrize("bounds", [(), (1,), (2, 3), (1, 4, 5), (1, 2, 3, 4, 5, 6)])
def test_text_offsets_do_not_depend_on_how_the_answer_is_cut(make_context, echo, held, bounds):
    text = "x€é😀"
    token_ids = list(text.encode())
    context = make_context(num_logprobs=1, echo=echo)
    (choice,) = completion_response(context, [output(text, token_ids, last=True)]).choices
    whole = msgspec.to_builtins(choice.logprobs)
    write = CompletionChunks(context, {})
    parts = streamed([write(part) for part in cuts(text, token_ids, held, bounds)])
    assert "".join(part["text"] for part in parts) == choice.text
    for name, entries in whole.items():
        assert [entry for part in parts for entry in part["logprobs"][name]] == entries, name


def test_text_offsets_are_indexes_of_the_text(make_context):
    text = "x€é"
    context = make_context(num_logprobs=1, echo=True)
    (choice,) = completion_response(context, [output(text, list(text.encode()), last=True)]).choices
    assert choice.text == "abx€é"
    # the special token is no part of the text; three bytes are one character, then two are
    assert choice.logprobs.text_offset == [0, 0, 1, 2, 3, 3, 3, 4, 4]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"a", b"\xe2", b"b"], [0, 1, 2]),  # a character that is never completed becomes U+FFFD
        ([b"\xe2\x82", b"\xac", b"b"], [0, 0, 1]),
        ([b"", b"ab", b"", b"c"], [0, 0, 2, 2]),
        ([b"\x80", b"a"], [0, 1]),
    ],
)
def test_text_offsets_count_broken_characters(pieces, expected):
    offsets = TextOffsets()
    assert [offsets.advance(piece) for piece in pieces] == expected


@pytest.mark.parametrize("bounds", [(), (1,), (1, 2, 3, 4)])
def test_bytes_of_all_tokens_decode_to_the_text(make_context, bounds):
    """OpenAI's clients join them if a character consists of several tokens."""
    text = "€é"
    token_ids = list(text.encode())
    context = make_context(num_logprobs=1)
    choice = chat_response(context, [output(text, token_ids, last=True)]).choices[0]
    whole = [entry.bytes for entry in choice.logprobs.content]
    assert whole == [[byte] for byte in token_ids]
    assert [entry.top_logprobs[0].bytes for entry in choice.logprobs.content] == whole
    write = ChatChunks(context, {})
    parts = streamed([write(part) for part in cuts(text, token_ids, 0, bounds)])
    entries = [
        entry for part in parts for entry in (part["logprobs"] or {"content": ()})["content"]
    ]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == text


def test_bytes_of_a_position_are_asked_for_at_once(io_processor):
    position = {i: Logprob(-float(i), 1) for i in (97, 98, 99, 100)}
    shown = chat_logprobs([99, 97], [position, {}], TokenTexts(io_processor, as_ids=True), 3)
    assert io_processor.bytes_calls == 2
    first, second = shown.content
    assert (first.bytes, second.bytes) == ([99], [97])
    assert [entry.bytes for entry in first.top_logprobs] == [[97], [98], [99]]
    assert [entry.token for entry in first.top_logprobs] == [f"token_id:{i}" for i in (97, 98, 99)]
    assert second.top_logprobs == []


def test_special_token_that_is_skipped_brings_no_bytes(make_context):
    context = make_context(num_logprobs=1)
    (choice,) = chat_response(context, [output("x", [120, SPECIAL], last=True)]).choices
    assert [entry.bytes for entry in choice.logprobs.content] == [[120], []]


@pytest.mark.parametrize("char", ["\u0085", "\u2028", "\u2029"])
def test_line_breaks_beyond_ascii_are_escaped_in_streams(make_context, char):
    """Clients that split the stream as text would end a line there."""
    context = make_context(num_logprobs=1)
    for write in (CompletionChunks(context, {}), ChatChunks(make_context(), {})):
        first = write(output(f"a{char}", list(f"a{char}".encode()), last=False))
        later = write(output(f"{char}é", list(f"{char}é".encode()), last=False))
        text = (first + later).decode()
        assert char not in text
        assert f"\\u{ord(char):04x}" in text
        assert "é" in text
        assert all(json.loads(line[6:]) for line in text.split("\n\n") if line)
