"""The grammar backend `xgrammar`: a parser over automata, in C++, with precomputed masks. Any process.

The library imports torch and transformers, though nothing here uses them. Compiling and filling masks release Python's
lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tenonry.sampling_params import StructuredOutput
from tenonry_grammar_xgrammar import notation
from tenonry_grammar_xgrammar.schema import rewritten
from tenonry_grammar_xgrammar.vocabulary import token_bytes
from tenonry_grammar_xgrammar.write import written
from tenonry_grammars.base import (
    Grammar,
    GrammarBackend,
    GrammarContext,
    GrammarError,
    Matcher,
    ends_of,
)
from tenonry_grammars.bits import EVERYTHING, I32, NOTHING, WORD_BITS
from tenonry_grammars.notation import is_lark
from tenonry_grammars.regex import parsed
from tenonry_grammars.schema import parse_schema

ANY_OBJECT = {"type": "object"}
# A line break and some indentation: a model that likes white space could write nothing else for ever.
MAX_WHITESPACE = 9
CACHE_BYTES = 64 << 20  # of parts that grammars have in common
MAX_THREADS = 8
ROWS_FOR_THREADS = 16  # fewer are filled by the calling thread
MAX_ERROR_CHARS = 500


class XMatcher(Matcher):
    """Over a matcher of the library."""

    __slots__ = ("inner", "vocab_size")

    def __init__(self, inner: Any, vocab_size: int) -> None:
        self.inner = inner
        self.vocab_size = vocab_size

    def accept(self, token_ids: Sequence[int]) -> int:
        accept = self.inner.accept_token
        for count, token_id in enumerate(token_ids):
            if token_id >= self.vocab_size or not accept(token_id):
                return count
        return len(token_ids)

    def rollback(self, count: int) -> None:
        if count:
            self.inner.rollback(count)


class XGrammarGrammar(Grammar):
    """Over a compiled grammar of the library, which rows share."""

    def __init__(
        self,
        compiled: Any,
        context: GrammarContext,
        special_ids: Container[int],
        new_matcher: Callable[..., Any],
    ) -> None:
        self._compiled = compiled
        self._context = context
        self._special_ids = special_ids
        self._new_matcher = new_matcher

    def matcher(self, end_ids: Sequence[int]) -> XMatcher:
        ends = ends_of(self._context, end_ids, self._special_ids)
        matcher = self._new_matcher(self._compiled, override_stop_tokens=ends)
        return XMatcher(matcher, self._context.vocab_size)


class XGrammar(GrammarBackend):
    """See `tenonry_grammars.base.GrammarBackend`. JSON schema, regular expression, choice, GBNF, plain Lark."""

    def __init__(self, context: GrammarContext) -> None:
        super().__init__(context)
        pieces = token_bytes(context.tokenizer_json, context.vocab_size)
        self._special_ids = {token_id for token_id, piece in enumerate(pieces) if not piece}
        self._library = _library()
        ends = [token_id for token_id in context.end_ids if token_id < context.vocab_size]
        tokenizer = self._library.TokenizerInfo(
            pieces, vocab_size=context.vocab_size, stop_token_ids=ends
        )
        # The library sets bits behind the last id, too.
        self._last_word = np.int32(EVERYTHING)
        if context.vocab_size % WORD_BITS:
            self._last_word = np.int32((1 << context.vocab_size % WORD_BITS) - 1)
        # One thread: what takes long is lowered by the caller, which does not know others.
        self._compiler = self._library.GrammarCompiler(
            tokenizer, max_threads=1, cache_limit_bytes=CACHE_BYTES
        )

    def compile(self, spec: StructuredOutput) -> XGrammarGrammar:
        try:
            compiled = self._compile(spec)
        except GrammarError:
            raise
        except Exception as error:  # noqa: BLE001 - the library raises several kinds
            raise GrammarError(_in_one_line(error)) from None
        return XGrammarGrammar(
            compiled, self.context, self._special_ids, self._library.GrammarMatcher
        )

    def _compile(self, spec: StructuredOutput) -> Any:
        compiler = self._compiler
        if spec.json_object or spec.json is not None:
            schema = ANY_OBJECT if spec.json is None else parse_schema(spec.json)
            return compiler.compile_json_schema(
                json.dumps(rewritten(schema)), strict_mode=False, max_whitespace_cnt=MAX_WHITESPACE
            )
        if spec.regex is not None:
            return compiler.compile_regex(written(parsed(spec.regex, whole=True), in_json=False))
        if spec.choice is not None:
            return self._compile_ebnf(notation.choice_grammar(spec.choice))
        grammar = spec.grammar or ""
        if is_lark(grammar):
            return compiler.compile_lark(notation.lark_grammar(grammar))
        return self._compile_ebnf(notation.ebnf_grammar(grammar))

    def _compile_ebnf(self, grammar: str) -> Any:
        return self._compiler.compile_grammar(grammar, root_rule_name=notation.FIRST_RULE)

    def accept_each(self, matchers: Sequence[Matcher], token_ids: Sequence[int]) -> list[bool]:
        if len(matchers) < ROWS_FOR_THREADS:
            return super().accept_each(matchers, token_ids)
        rows: list[Any] = list(matchers)
        inner = [row.inner for row in rows]
        accepted: list[bool] = self._library.BatchGrammarMatcher.batch_accept_token(
            inner, list(token_ids)
        )
        return accepted

    def fill_masks(self, matchers: Sequence[Matcher], out: I32) -> None:
        rows: list[Any] = list(matchers)
        masks = out if out.flags.c_contiguous else np.zeros(out.shape, np.int32)
        running = []
        for line, row in enumerate(rows):
            if row.inner.is_terminated():
                masks[line] = NOTHING
            else:
                running.append(line)
        inner = [rows[line].inner for line in running]
        if len(running) < ROWS_FOR_THREADS:
            for line, matcher in zip(running, inner, strict=True):
                matcher.fill_next_token_bitmask(masks, line)
        else:
            self._threads.batch_fill_next_token_bitmask(inner, masks, running)
        masks[:, -1] &= self._last_word
        if masks is not out:
            out[:] = masks

    @cached_property
    def _threads(self) -> Any:
        """The library's own; the model needs the other processors."""
        wanted = min(MAX_THREADS, (os.cpu_count() or 1) // 2)
        return self._library.BatchGrammarMatcher(max_threads=max(1, wanted))


def _library() -> Any:
    try:
        import xgrammar
    except ImportError as error:
        raise GrammarError(
            f"xgrammar cannot be imported ({error}); install it: pip install tenonry-grammar-xgrammar"
        ) from None
    return xgrammar


def _in_one_line(error: Exception) -> str:
    told = " ".join(str(error).split()) or type(error).__name__
    return told[:MAX_ERROR_CHARS]
