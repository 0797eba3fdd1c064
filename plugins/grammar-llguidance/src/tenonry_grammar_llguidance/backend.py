"""The grammar backend `llguidance`: an Earley parser over a lexer of derivatives, in Rust. Any process; no torch.

Compiling and filling masks release Python's lock. The cost of a specification is bounded by the parser's own limits,
the same in every process; one that reaches a limit while it runs fails its own row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tenonry.sampling_params import StructuredOutput
from tenonry_grammar_llguidance.tokenizer import faithful_tokenizer
from tenonry_grammar_llguidance.translate import translated
from tenonry_grammars.base import (
    Grammar,
    GrammarBackend,
    GrammarContext,
    GrammarError,
    Matcher,
    ends_of,
)
from tenonry_grammars.bits import I32, NOTHING, allow, forbid, num_words

# Items of the parser that one mask may make; the library's own bound is 50 000, which takes 30 ms.
MAX_STEP_ITEMS = 20_000
# Of these in one row, four for each property that may come next; the library's own bound is 2 000.
MAX_ROW_ITEMS = 4096
MAX_THREADS = 8
ROWS_FOR_THREADS = 16  # fewer are filled by the calling thread
MAX_ERROR_CHARS = 500
DEFINITION = re.compile(r" while processing \S+#/\$defs/(\w+)")


class LLMatcher(Matcher):
    """Over a matcher of the library. `own_ends`: end ids where these differ from the tokenizer's, else None."""

    __slots__ = ("grammar", "inner", "own_ends")

    def __init__(self, grammar: LLGrammar, inner: Any, own_ends: list[int] | None) -> None:
        self.grammar = grammar
        self.inner = inner
        self.own_ends = own_ends

    def accept(self, token_ids: Sequence[int]) -> int:
        """Consume tokens. Of several, each has a mask made before it, as when it was sampled.

        A mask works out what its tokens need within a budget of its own. Without one, a token takes from the budget
        that all copies share, and one that exceeds it is refused.
        """
        for count, token_id in enumerate(token_ids):
            if len(token_ids) > 1:
                self.inner.compute_bitmask()
            if self.inner.try_consume_tokens([token_id]) != 1:
                return count
        return len(token_ids)

    def rollback(self, count: int) -> None:
        if count:
            self.inner.rollback(count)


class LLGrammar(Grammar):
    """Over a matcher that no row uses: copies of it share its lexer, with what it has worked out and its limits."""

    def __init__(
        self, prototype: Any, context: GrammarContext, special_ids: Container[int]
    ) -> None:
        self._prototype = prototype
        self._context = context
        self._special_ids = special_ids
        self._is_spent = False

    @property
    def is_spent(self) -> bool:
        return self._is_spent

    def matcher(self, end_ids: Sequence[int]) -> LLMatcher:
        context = self._context
        inner = self._prototype.deep_copy()
        if set(end_ids) == set(context.end_ids):
            return LLMatcher(self, inner, None)
        return LLMatcher(self, inner, ends_of(context, end_ids, self._special_ids))

    def check(self) -> None:
        """Find out whether a new row could still begin."""
        inner = self._prototype.deep_copy()
        inner.compute_bitmask()
        self._is_spent = inner.is_error()


class LLGuidance(GrammarBackend):
    """See `tenonry_grammars.base.GrammarBackend`. JSON schema, regular expression, choice, Lark, GBNF."""

    def __init__(self, context: GrammarContext) -> None:
        super().__init__(context)
        import llguidance

        self._library = llguidance
        self._limits = llguidance.LLParserLimits(
            step_max_items=MAX_STEP_ITEMS, max_items_in_row=MAX_ROW_ITEMS, verbose_errors=False
        )
        self._tokenizer, self._special_ids = self._load_tokenizer()
        # The tokenizer may have more ids than the model has logits, or fewer.
        self._num_words = num_words(self._tokenizer.vocab_size)
        self._ends: list[int] = self._tokenizer.eos_tokens
        # The model needs the other processors.
        self._num_threads = min(MAX_THREADS, (os.cpu_count() or 1) // 2)

    def _load_tokenizer(self) -> tuple[Any, dict[str, int]]:
        """The library's own, and the ids of special tokens by name."""
        context = self.context
        text, special_ids = faithful_tokenizer(context.tokenizer_json)
        ends = [token_id for token_id in context.end_ids if token_id < context.vocab_size]
        if not ends:  # the library needs one: an id that stands for no text
            ends = [token_id for token_id in special_ids.values() if token_id < context.vocab_size]
            ends = ends[:1]
        load = self._library.LLTokenizer
        try:
            tokenizer = load(text, n_vocab=context.vocab_size, eos_token=ends or None)
        except ValueError:
            try:  # the tokenizer has ids for which the model has no logit
                tokenizer = load(text, eos_token=ends or None)
            except ValueError as error:
                raise GrammarError(f"llguidance cannot read the tokenizer: {error}") from None
        return tokenizer, special_ids

    def compile(self, spec: StructuredOutput) -> LLGrammar:
        text, paths = translated(spec, self._special_ids)
        prototype = self._library.LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        if prototype.is_error():
            raise _error(prototype.get_error(), paths)
        return LLGrammar(prototype, self.context, self._special_ids.values())

    def accept_each(self, matchers: Sequence[Matcher], token_ids: Sequence[int]) -> list[bool]:
        rows: list[Any] = list(matchers)
        inner = [row.inner for row in rows]
        pairs = list(zip(inner, token_ids, strict=True))
        if self._is_alone(len(rows)):
            return [one.consume_token(token_id) for one, token_id in pairs]
        accepted: list[bool] = self._threads.consume_token_par(pairs)
        return accepted

    def fill_masks(self, matchers: Sequence[Matcher], out: I32) -> None:
        rows: list[Any] = list(matchers)
        width = out.shape[1]
        is_direct = width == self._num_words and out.flags.c_contiguous
        masks = out
        if not is_direct:
            masks = np.zeros((len(rows), self._num_words), np.int32)
        self._fill(rows, masks)
        for line, row in enumerate(rows):
            inner = row.inner
            if inner.is_error():
                masks[line] = NOTHING
                row.grammar.check()
            elif row.own_ends is not None:
                forbid(masks[line], self._ends)
                if inner.is_accepting():
                    allow(masks[line], row.own_ends)
        if not is_direct:
            out[:] = masks[:, :width]

    def _fill(self, rows: list[Any], masks: I32) -> None:
        num_bytes = self._num_words * masks.itemsize
        first = masks.ctypes.data
        if self._is_alone(len(rows)):
            for line, row in enumerate(rows):
                row.inner.unsafe_compute_mask_ptr(first + line * num_bytes, num_bytes)
            return
        numbered = [(row.inner, line) for line, row in enumerate(rows)]
        self._threads.unsafe_compute_mask_ptr(numbered, first, num_bytes, len(rows))

    def _is_alone(self, num_rows: int) -> bool:
        """Return True if the calling thread is as fast: a single other one would have to be woken, and waited for."""
        return num_rows < ROWS_FOR_THREADS or self._num_threads < 2

    @cached_property
    def _threads(self) -> Any:
        """The library's own."""
        return self._library.LLExecutor(self._num_threads)


def _error(text: str, paths: Mapping[str, str] | None) -> GrammarError:
    """An error of the library in one line, without the state of its parser; of a schema, with the path."""
    told = " ".join(text.partition("<state>")[0].split())[:MAX_ERROR_CHARS]
    if paths is None:
        return GrammarError(told)
    found = DEFINITION.search(told)
    what = DEFINITION.sub("", told)
    return GrammarError(what, paths.get(found[1], "") if found else "")
