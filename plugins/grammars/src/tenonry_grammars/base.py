"""The interface of a grammar backend: the extension point `tenonry.grammars`. Worker process, and the checking process.

A backend is built once per process, for one tokenizer. It compiles a `StructuredOutput` into a `Grammar`, from which
each row receives its own `Matcher`. Nothing here needs torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tenonry.sampling_params import StructuredOutput
from tenonry_grammars.bits import I32, num_words


class GrammarError(ValueError):
    """A specification that cannot be compiled; the text names the error, for its author.

    `path`: the JSON pointer of the part of a schema that is at fault, where the backend knows it; "" for the whole.
    `keyword`: the one of that part without which the rest might be served.
    """

    def __init__(self, text: str, path: str | None = None, keyword: str | None = None) -> None:
        super().__init__(text)
        self.path = path
        self.keyword = keyword


@dataclass(frozen=True, slots=True)
class GrammarContext:
    """The tokenizer that a backend is built for.

    `tokenizer_json`: as the `tokenizers` library writes one. `vocab_size`: logits of the model, at least one; ids that
    the tokenizer lacks are never allowed. `end_ids`: the model's own end-of-sequence ids; there may be none.
    """

    tokenizer_json: str
    vocab_size: int
    end_ids: tuple[int, ...] = ()

    @property
    def num_words(self) -> int:
        """Length of a mask in words of 32 bits."""
        return num_words(self.vocab_size)


class Matcher(ABC):
    """Position of one output in its grammar. Used by one thread at a time."""

    @abstractmethod
    def accept(self, token_ids: Sequence[int]) -> int:
        """Advance by these tokens of the output; returns how many of them the grammar allows.

        Fewer than there are: the first one that it forbids comes next, and only those before it were taken.
        """

    @abstractmethod
    def rollback(self, count: int) -> None:
        """Revert the last `count` accepted tokens."""


class Grammar(ABC):
    """One compiled specification; any number of rows may use it, from several threads."""

    @property
    def is_spent(self) -> bool:
        """True if its matchers have reached a shared limit: new rows need the specification recompiled."""
        return False

    @abstractmethod
    def matcher(self, end_ids: Sequence[int]) -> Matcher:
        """A matcher at the start of the output. `end_ids`: all ids that end this request.

        Its masks allow an id of `end_ids` where the output so far is complete. Where nothing else can follow, they
        allow nothing but those ids. An end id of the model that does not end this request is never allowed, and one
        that stands for text, which the answer would show, only where all of `end_ids` do; see `ends_of`.
        """


def ends_of(
    context: GrammarContext, end_ids: Sequence[int], special_ids: Container[int]
) -> list[int]:
    """Those of `end_ids` with which a complete output ends. `special_ids`: tokens without text."""
    known = [token_id for token_id in end_ids if token_id < context.vocab_size]
    silent = [each for each in known if each in context.end_ids or each in special_ids]
    return silent or known


class GrammarBackend(ABC):
    """Compiles grammars, and fills masks for batches of rows.

    `compile` is called in a thread beside the steps, `accept_each` and `fill_masks` in another while the model runs, or
    in that of the steps: all should let other threads go on, and the latter two must be quick. Bounds on time and
    memory are the backend's own.
    """

    interface_version: ClassVar[int] = 1

    def __init__(self, context: GrammarContext) -> None:
        """Raises GrammarError for a tokenizer that it cannot read."""
        self.context = context

    @abstractmethod
    def compile(self, spec: StructuredOutput) -> Grammar:
        """Raises GrammarError for what it cannot enforce, all of it; `start_after` is the caller's business."""

    def accept_each(self, matchers: Sequence[Matcher], token_ids: Sequence[int]) -> list[bool]:
        """Advance each matcher by its one token; whether its grammar allows the token.

        What `Matcher.accept` does one by one, which is done here; a matcher that refuses is not used again.
        """
        pairs = zip(matchers, token_ids, strict=True)
        return [matcher.accept([token_id]) == 1 for matcher, token_id in pairs]

    @abstractmethod
    def fill_masks(self, matchers: Sequence[Matcher], out: I32) -> None:
        """Fill the masks of the next tokens: `out` i32[matchers, `num_words`], bit i % 32 of word i // 32 for token i.

        A row without any bit: the grammar cannot be continued, because it failed or reached a limit.
        """
