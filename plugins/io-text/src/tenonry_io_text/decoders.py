"""Text of single tokens, for decoders where it is well defined. Front end.

A tokenizer's decoder turns a list of tokens into text. For nearly all models each token contributes the same
characters, or the same bytes of UTF-8, at any position, except perhaps at the very start of a text. Such decoders are
recognised here by their serialised form; a token's piece is worked out once, and every later use is one look-up. Any
other decoder is run over a small window of tokens instead (`tenonry_io_text.window`).
"""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

REPLACEMENT = "\ufffd"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
ANCHOR = "a"


class Rule(Protocol):
    """Conversion of tokens to text. A piece is text, or bytes that are only a part of a character.

    `first_differs`: the first token of a text contributes something else (`first`). `each_byte`: bytes that form no
    character become one replacement character each, instead of one together.
    """

    first_differs: bool
    each_byte: bool

    def piece(self, token: str) -> str | bytes:
        """The contribution of a token inside a text."""
        ...

    def first(self, token: str) -> str | bytes:
        """The contribution of a token at the start of a text."""
        ...


def _printable_bytes() -> dict[str, int]:
    """Character → byte of byte-level BPE: printable Latin-1 represents itself, the other 68 bytes follow from U+0100.

    Source: `bytes_to_unicode` of GPT-2, https://github.com/openai/gpt-2/blob/master/src/encoder.py.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [value for value in range(256) if value not in plain]
    return {chr(value): value for value in plain} | {
        chr(256 + at): value for at, value in enumerate(rest)
    }


class ByteLevelRule:
    """Byte-level BPE (GPT-2, Llama 3, Qwen, …): every character of a token represents one byte."""

    first_differs = False
    each_byte = False
    _bytes = _printable_bytes()

    def piece(self, token: str) -> str | bytes:
        """A token with any other character in it is an added token, and means itself."""
        try:
            data = bytes([self._bytes[char] for char in token])
        except KeyError:
            return token
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data

    first = piece


class ProbedRule:
    """Decoders that treat tokens independently, except for the first: a piece is the text that the decoder adds after
    an anchor.

    `byte_tokens`: tokens such as <0xE2> represent one byte each.
    """

    first_differs = True
    each_byte = True

    def __init__(self, decoder: Any, *, byte_tokens: bool) -> None:
        self._decode = decoder.decode
        self._byte_tokens = byte_tokens

    def piece(self, token: str) -> str | bytes:
        data = self._byte(token)
        return data if data is not None else str(self._decode([ANCHOR, token])[len(ANCHOR) :])

    def first(self, token: str) -> str | bytes:
        data = self._byte(token)
        return data if data is not None else str(self._decode([token]))

    def _byte(self, token: str) -> bytes | None:
        """The byte of a byte token that is no character on its own; the decoder handles the others."""
        match = BYTE_TOKEN.fullmatch(token) if self._byte_tokens else None
        value = int(match[1], 16) if match else 0
        return bytes([value]) if value >= 0x80 else None


class SpacedRule:
    """No decoder at all: tokens are joined with spaces."""

    first_differs = True
    each_byte = False

    def piece(self, token: str) -> str | bytes:
        return " " + token

    def first(self, token: str) -> str | bytes:
        return token


def rule_for(decoder: Any) -> Rule | None:
    """The rule of a `tokenizers` decoder, or None if its tokens cannot be taken one by one."""
    if decoder is None:
        return SpacedRule()
    steps = _steps(json.loads(decoder.__getstate__()))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevelRule()
    if kinds in (["Metaspace"], ["WordPiece"]):
        return ProbedRule(decoder, byte_tokens=False)
    if _is_sentencepiece(steps, kinds):
        return ProbedRule(decoder, byte_tokens="ByteFallback" in kinds)
    return None


def _steps(state: dict[str, Any]) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [step for part in state["decoders"] for step in _steps(part)]


def _is_sentencepiece(steps: list[dict[str, Any]], kinds: list[str]) -> bool:
    """Replace…, ByteFallback, Fuse, Strip, in this order and each at most once but the first: SentencePiece's decoding.

    Replace must look for a fixed string, and Strip, which follows Fuse, may take one leading space at most.
    """
    text = " ".join(kinds)
    if not re.fullmatch(r"(Replace ?)+(ByteFallback ?)?(Fuse( Strip)?)?", text):
        return False
    if any("String" not in step["pattern"] for step in steps if step["type"] == "Replace"):
        return False
    return all(
        step["content"] == " " and step["start"] <= 1 and step["stop"] == 0
        for step in steps
        if step["type"] == "Strip"
    )


def decode_prefix(data: bytes, *, each_byte: bool) -> tuple[str, bytes]:
    """The text of all complete (or hopeless) characters in `data`, and the start of one that may still complete.

    Hopeless bytes become U+FFFD: one for each longest invalid run, as in the Unicode standard (section 3.9, "best
    practice"), or one per byte with `each_byte`.
    """
    text = ""
    while data:
        try:
            return text + data.decode(), b""
        except UnicodeDecodeError as error:
            text += data[: error.start].decode()
            if error.reason == "unexpected end of data":
                return text, data[error.start :]
            text += replaced(data[error.start : error.end], each_byte=each_byte)
            data = data[error.end :]
    return text, b""


def replaced(data: bytes, *, each_byte: bool) -> str:
    """Replacement for the bytes of one broken character."""
    return REPLACEMENT * (len(data) if each_byte else 1)
