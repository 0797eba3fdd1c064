"""Grammar backend `labels`: one of several texts, for classification. Front end's checking process, worker process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from tenonry.sampling_params import StructuredOutput
from tenonry.step import I32
from tenonry_grammars.base import (
    Grammar,
    GrammarBackend,
    GrammarContext,
    GrammarError,
    Matcher,
    ends_of,
)
from tenonry_grammars.bits import NOTHING, allow

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTES = {chr(byte): byte for byte in PRINTABLE} | {
    chr(256 + place): byte for place, byte in enumerate(OTHERS)
}


class LabelMatcher(Matcher):
    """State of one row. `starts`: lengths of the text before each token."""

    def __init__(self, grammar: LabelGrammar, ends: list[int]) -> None:
        self.grammar = grammar
        self.ends = ends
        self.written = b""
        self.starts: list[int] = []

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            piece = self.grammar.backend.pieces.get(token_id)
            if piece is None or not self.grammar.rests(self.written + piece):
                return count
            self.starts.append(len(self.written))
            self.written += piece
        return len(token_ids)

    def rollback(self, count: int) -> None:
        if count:
            self.written = self.written[: self.starts[-count]]
            del self.starts[-count:]

    def fill(self, mask: I32) -> None:
        """Allow the next tokens of each label, and end tokens after a complete one."""
        mask[:] = self.grammar.mask(self.written)
        if self.written in self.grammar.labels:
            allow(mask, self.ends)


class LabelGrammar(Grammar):
    """Labels of one request. Masks are computed once per text so far."""

    def __init__(self, labels: frozenset[bytes], backend: Labels) -> None:
        self.labels = labels
        self.backend = backend
        self.masks: dict[bytes, I32] = {}

    def rests(self, start: bytes) -> list[bytes]:
        """Remainders of the labels that begin with `start`."""
        return [label[len(start) :] for label in self.labels if label.startswith(start)]

    def mask(self, start: bytes) -> I32:
        """Mask of the tokens with which a label continues."""
        if start not in self.masks:
            mask = np.full(self.backend.context.num_words, NOTHING, np.int32)
            for rest in self.rests(start):
                for end in range(1, min(len(rest), self.backend.longest) + 1):
                    allow(mask, self.backend.tokens.get(rest[:end], ()))
            self.masks[start] = mask
        return self.masks[start]

    def matcher(self, end_ids: Sequence[int]) -> LabelMatcher:
        return LabelMatcher(self, ends_of(self.backend.context, end_ids, self.backend.special))


class Labels(GrammarBackend):
    """Supports `choice`, for byte-level tokenizers. `pieces`: bytes by token; `tokens`: tokens by bytes."""

    interface_version = 1

    def __init__(self, context: GrammarContext) -> None:
        super().__init__(context)
        try:
            tokenizer = Tokenizer.from_str(context.tokenizer_json)
        except Exception as error:
            raise GrammarError(f"the tokenizer cannot be read: {error}") from error
        self.special = set(tokenizer.get_added_tokens_decoder())
        self.pieces: dict[int, bytes] = {}
        self.tokens: dict[bytes, list[int]] = {}
        for token in range(min(context.vocab_size, tokenizer.get_vocab_size())):
            text = tokenizer.id_to_token(token)
            if text and token not in self.special:
                self.pieces[token] = piece_bytes(text)
                self.tokens.setdefault(self.pieces[token], []).append(token)
        self.longest = max(map(len, self.tokens), default=0)

    def compile(self, spec: StructuredOutput) -> LabelGrammar:
        if spec.choice is None:
            raise GrammarError("the backend labels supports choice only; pass a list of texts")
        return LabelGrammar(frozenset(text.encode() for text in spec.choice), self)

    def fill_masks(self, matchers: Sequence[Matcher], out: I32) -> None:
        out[:] = NOTHING
        for line, matcher in zip(out, matchers, strict=True):
            if isinstance(matcher, LabelMatcher):
                matcher.fill(line)


def piece_bytes(text: str) -> bytes:
    """Bytes of a token of a byte-level tokenizer, in which each letter represents one. Raises GrammarError."""
    try:
        return bytes(BYTES[letter] for letter in text)
    except KeyError as error:
        raise GrammarError(f"token {text!r} is not byte-level; choose another backend") from error
