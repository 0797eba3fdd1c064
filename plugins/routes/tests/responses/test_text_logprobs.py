"""Log-probabilities of the text of an answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.errors import RequestError
from tenonry_routes.responses.request import chat_fields
from tenonry_routes.responses.text_logprobs import TextLogprobs

NAME = "message.output_text.logprobs"


def token(text: str | bytes) -> SimpleNamespace:
    return SimpleNamespace(token=text, bytes=list(text.encode() if isinstance(text, str) else text))


def names(entries: list[SimpleNamespace]) -> list[str | bytes]:
    return [entry.token for entry in entries]


def test_markup_and_reasoning_have_none():
    found = TextLogprobs()
    found.add(map(token, ["<think>", "Hm", ".", "</think>", "\n\n", "So", " it", " is"]))
    found.take("Hm.")
    assert names(found.take("So it")) == ["So", " it"]
    assert names(found.take(" is")) == [" is"]


def test_a_text_that_was_reasoned_is_found_where_it_is_answered():
    found = TextLogprobs()
    found.add(map(token, ["<", "yes", ">", "yes!"]))
    assert names(found.take("yes")) == ["yes"]
    assert names(found.take("yes!")) == ["yes!"]


def test_a_token_over_two_texts_belongs_to_the_first():
    found = TextLogprobs()
    found.add(map(token, ["ab", "cd"]))
    assert names(found.take("abc")) == ["ab", "cd"]
    found.add([token("e")])
    assert names(found.take("de")) == ["e"]


def test_characters_of_several_tokens_and_tokens_without_text():
    found = TextLogprobs()
    found.add(map(token, [b"\xf0\x9f", b"\xa6\x8a", b""]))
    assert names(found.take("🦊")) == [b"\xf0\x9f", b"\xa6\x8a"]


def test_a_text_spelt_otherwise_takes_all_that_wait():
    found = TextLogprobs()
    found.add(map(token, [b"\xff", "a"]))
    assert names(found.take("\ufffda")) == [b"\xff", "a"]
    assert found.take("b") == []


@given(st.lists(st.text(min_size=1, max_size=4), max_size=12), st.data())
def test_each_token_of_a_text_is_given_once(tokens, data):
    text = "".join(tokens)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    found = TextLogprobs()
    found.add(map(token, tokens))
    taken = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        taken += found.take(text[start:end])
    assert names(taken) == tokens


def test_include_asks_for_them():
    def fields(**body: object) -> dict[str, object]:
        return chat_fields({"input": "x", **body}, lambda part, why: ignored.append(part))

    ignored: list[str] = []
    assert fields(include=[NAME])["logprobs"] is True
    assert fields(include=[NAME], top_logprobs=3)["top_logprobs"] == 3
    assert "logprobs" not in fields(include=None, top_logprobs=0)
    assert ignored == []
    assert "logprobs" not in fields(include=["reasoning.encrypted_content"])
    assert ignored == ["include (reasoning.encrypted_content)"]
    with pytest.raises(RequestError, match="top_logprobs: needs include"):
        fields(top_logprobs=3)
    for bad in ("x", [5], {}):
        with pytest.raises(RequestError, match="include: must be a list"):
            fields(include=bad)
