"""One row with structured output: its matcher, and how far that has read the row's tokens. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import NDArray

    from tenonry.sampling_params import StructuredOutput
    from tenonry.step import NewRow
    from tenonry_grammars.base import Grammar, Matcher


class GrammarRow:
    """`index`: of the row. `first`: where its output begins in its tokens; `taken`: how far the matcher has read them.

    `matcher` is None until the output has the tokens `spec.start_after`. A row with a `failure` has no token left.
    """

    __slots__ = (
        "compiled",
        "end_ids",
        "failure",
        "first",
        "handle",
        "index",
        "matcher",
        "spec",
        "taken",
    )

    def __init__(
        self, new: NewRow, spec: StructuredOutput, compiled: Future[Grammar], vocab_size: int
    ) -> None:
        self.handle = new.handle
        self.index = new.row
        self.end_ids = [token_id for token_id in new.stop_token_ids if token_id < vocab_size]
        self.spec = spec
        self.compiled = compiled
        self.first = len(new.token_ids) - new.num_output
        self.taken = self.first
        self.matcher: Matcher | None = None
        self.failure = ""

    def advance(self, tokens: NDArray[np.int32], length: int) -> None:
        """Read the row's tokens up to `length`; they are on the host. Tokens read beyond it are rolled back."""
        if self.matcher is None:
            self._find_start(tokens, length)
        if self.matcher is None:
            return
        if length < self.taken:
            self.matcher.rollback(self.taken - length)
        new = tokens[self.taken : length].tolist()
        self.taken = length
        if not new:
            return
        if min(new) < 0:
            self.failure = "a step was scheduled before the last token of the row was known"
            return
        accepted = self.matcher.accept(new)
        if accepted < len(new):
            self.refuse(new[accepted])

    def refuse(self, token_id: int) -> None:
        """The grammar does not allow this token, which the output has."""
        self.failure = f"token {token_id} of its output does not fit the grammar"

    def restart(self, compiled: Future[Grammar]) -> None:
        """Read the output again from its first token, with the grammar compiled anew."""
        self.compiled = compiled
        self.matcher = None
        self.taken = self.first
        self.failure = ""

    def _find_start(self, tokens: NDArray[np.int32], length: int) -> None:
        """Make the matcher once the output has the tokens after which the grammar holds."""
        wanted = list(self.spec.start_after)
        count = len(wanted)
        begin = max(self.first, self.taken - count)
        for end in range(begin + count, length + 1):
            if tokens[end - count : end].tolist() == wanted:
                grammar = self.compiled.result()
                self.matcher = grammar.matcher(self.end_ids)
                self.taken = end
                return
        self.taken = length
