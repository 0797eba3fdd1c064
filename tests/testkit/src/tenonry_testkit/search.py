"""Search effort of the suites. Test process.

`TENONRY_TESTKIT_EFFORT=20` (or `pytest --testkit-effort=20`) runs twenty times as many examples, drawn at random; at
the default of 1, and below (0.1 is a quick check), every run uses the same ones.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, reporting, settings
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from hypothesis.strategies import SearchStrategy

EFFORT_VARIABLE = "TENONRY_TESTKIT_EFFORT"
NUMBER = re.compile(r"\d+(\.\d+)?")
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
MAX_SHRINKING_S = 10
LEAST_EXAMPLES = 6  # of tests with few, expensive examples
Value = TypeVar("Value")


def effort() -> float:
    """Factor of the usual number of examples. Raises ValueError unless it is a positive number."""
    text = os.environ.get(EFFORT_VARIABLE, "1")
    if not NUMBER.fullmatch(text) or float(text) == 0:
        raise ValueError(f"{EFFORT_VARIABLE}={text!r} must be a number above 0, such as 20 or 0.1")
    return float(text)


@contextlib.contextmanager
def brief_shrinking() -> Iterator[None]:
    """Limit the shrinking of a failing example to ten seconds instead of five minutes: a test has a time limit."""
    before = getattr(engine, "MAX_SHRINKING_SECONDS", None)
    if before is None:  # a hypothesis version with another name: failures merely take longer
        yield
        return
    engine.MAX_SHRINKING_SECONDS = MAX_SHRINKING_S
    try:
        with reporting.with_reporter(_report):
            yield
    finally:
        engine.MAX_SHRINKING_SECONDS = before


def _report(text: str) -> None:
    """Print hypothesis's reports; its text about slow shrinking names its own limit instead of this one."""
    if "working to shrink" in text:
        text = f"Shrinking stopped after {MAX_SHRINKING_S} s; a smaller failing example may exist."
    reporting.default(text)


def few_examples(examples: int) -> settings:
    """Return settings for `examples` examples at effort 1, and at least `LEAST_EXAMPLES`."""
    return settings(
        max_examples=max(LEAST_EXAMPLES, round(examples * effort())),
        deadline=None,
        derandomize=effort() <= 1,
        database=None,
        print_blob=effort() > 1,
        phases=PHASES,
        suppress_health_check=[HealthCheck.differing_executors],  # classes derive from a suite
    )


def search_settings(
    examples: int, *, steps: int = 30, phases: Sequence[Phase] = PHASES
) -> settings:
    """Return settings for `examples` examples at effort 1; deterministic there and below, random above."""
    times = effort()
    return settings(
        max_examples=max(1, round(examples * times)),
        stateful_step_count=steps,
        derandomize=times <= 1,
        database=None,
        deadline=None,
        print_blob=times > 1,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


def search(
    strategy: SearchStrategy[Value],
    check: Callable[[Value], object],
    examples: int,
    phases: Sequence[Phase] = PHASES,
) -> None:
    """Call `check` with drawn values; re-raises its exception for the smallest failing one."""

    @search_settings(examples, phases=phases)
    @given(strategy)
    def example(value: Value) -> None:
        check(value)

    with brief_shrinking():
        example()


def search_machine(
    machine: type[RuleBasedStateMachine],
    examples: int,
    steps: int,
    phases: Sequence[Phase] = PHASES,
) -> None:
    """Run a state machine."""
    with brief_shrinking():
        run_state_machine_as_test(
            machine, settings=search_settings(examples, steps=steps, phases=phases)
        )
