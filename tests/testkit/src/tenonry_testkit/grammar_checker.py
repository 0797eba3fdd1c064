"""Checks a scheduler's requests for grammars: the specification once, and no start before the answer. Test process."""

from __future__ import annotations

from collections.abc import Collection

from tenonry.step import NewRow, SchedulerOutput
from tenonry_testkit.ledger import Ledger
from tenonry_testkit.rules import GRAMMAR_IS_THERE, expect


class GrammarChecker:
    """Requests whose grammar is being compiled by the worker."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._asked: set[int] = set()

    def check(self, output: SchedulerOutput) -> None:
        """Raise RuleBroken for a wrong grammar request, or the start of a request before its grammar was reported."""
        for handle, spec in output.prepare.items():
            entry = self._ledger.entries.get(handle)
            expect(entry is not None, GRAMMAR_IS_THERE, f"handle {handle} was never added")
            if entry is not None:
                wanted = None if handle in self._asked else entry.wants.structured_output
                detail = f"{entry} is asked for with {spec}; expected {wanted}"
                expect(spec == wanted, GRAMMAR_IS_THERE, detail)
            self._asked.add(handle)
        for new in output.new:
            self._check_start(new)

    def _check_start(self, new: NewRow) -> None:
        entry = self._ledger.entries[new.handle]
        detail = f"{entry} starts, but its grammar is still being compiled"
        expect(new.handle not in self._asked, GRAMMAR_IS_THERE, detail)

    def prepared(self, handles: Collection[int]) -> None:
        """Record grammars reported by the worker."""
        self._asked.difference_update(handles)
