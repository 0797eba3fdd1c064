"""The conformance suite of progress bars of `LLM.generate`. Test process.

from tenonry_testkit.progress_bar import ProgressBarContract

class TestMine(ProgressBarContract):
    progress_bar = "my_package:my_bar"
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from tenonry.plugin.kinds import PROGRESS_BARS
from tenonry_testkit.functions import given, resolve_function


class _Interrupted(Exception):
    pass


class ProgressBarContract:
    """Subclass in a test module and name the `progress_bar`."""

    progress_bar: ClassVar[str | Callable[[int], Any] | None] = None

    # ------------------------------------------------------------------ tools, for tests of your own
    def build(self) -> Callable[[int], Any]:
        """Return the function as found by `LLM.generate`."""
        found: Callable[[int], Any] = resolve_function(PROGRESS_BARS, given(self.progress_bar))
        return found

    def play(self, total: int, *ended: int) -> tuple[str, str]:
        """Return standard output and standard error of one run."""
        output, errors = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
            self.build()(total) as update,
        ):
            for number in ended:
                update(number)
        return output.getvalue(), errors.getvalue()

    # ------------------------------------------------------------------ the contract
    def test_it_yields_a_function(self) -> None:
        """A context manager of the number of requests yields a function of the number of ended ones."""
        with contextlib.redirect_stderr(io.StringIO()), self.build()(3) as update:
            assert callable(update), f"it yields {update!r}, not a function"
            update(1)

    def test_it_shows_every_length_of_run(self) -> None:
        """One request, several, very many."""
        for total in (1, 2, 1000):
            self.play(total, *range(total + 1))

    def test_a_run_may_have_no_requests(self) -> None:
        """`LLM.generate([])`."""
        self.play(0)
        self.play(0, 0)

    def test_requests_may_end_together(self) -> None:
        """Numbers are totals: they may repeat, and skip values."""
        self.play(10, 0, 0, 4, 4, 9, 10, 10)

    def test_a_run_may_end_early(self) -> None:
        """An exception of the run propagates, and the bar ends."""
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                with self.build()(5) as update:
                    update(2)
                    raise _Interrupted
            except _Interrupted:
                return
        raise AssertionError("it swallowed the exception of the run")

    def test_runs_follow_one_another(self) -> None:
        """No state of a run remains for the next, in the same process."""
        _, first = self.play(4, 1, 4)
        for _ in range(2):
            _, again = self.play(4, 1, 4)
            assert bool(again) == bool(first)

    def test_runs_may_be_nested(self) -> None:
        """Two `LLM`s may generate in one process."""
        with (
            contextlib.redirect_stderr(io.StringIO()),
            self.build()(2) as outer,
            self.build()(3) as inner,
        ):
            for number in range(1, 3):
                outer(number)
                inner(number)

    def test_standard_output_is_left_to_the_caller(self) -> None:
        """Scripts print their results there."""
        output, _ = self.play(4, 1, 2, 3, 4)
        assert output == "", f"it wrote {output[:60]!r} to standard output"

    def test_it_leaves_the_process_as_it_was(self) -> None:
        """Standard streams and threads."""
        errors, output = sys.stderr, sys.stdout
        before = {thread for thread in threading.enumerate() if not thread.daemon}
        with contextlib.redirect_stderr(io.StringIO()) as text, self.build()(2) as update:
            update(2)
        try:
            assert text is not None
            assert sys.stderr is errors, "it replaced sys.stderr"
            assert sys.stdout is output, "it replaced sys.stdout"
        finally:
            sys.stderr, sys.stdout = errors, output
        left = {thread for thread in threading.enumerate() if not thread.daemon} - before
        assert not left, f"it left {left}"
