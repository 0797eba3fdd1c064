"""The conformance suite over `prefill-first`, and its two kinds of steps."""

from __future__ import annotations

import pytest

from tenonry_scheduler_prefill_first import PrefillFirstScheduler
from tenonry_testkit.harness import HarnessSpec, SchedulerHarness
from tenonry_testkit.scheduler import SchedulerContract
from tenonry_testkit.targets import resolve_target


@pytest.mark.slow
class TestContract(SchedulerContract):
    scheduler = PrefillFirstScheduler
    effort = 0.05


def steps(harness: SchedulerHarness, count: int) -> list[list[int]]:
    """Tokens of each row in the next steps."""
    for _ in range(count):
        harness.launch()
        harness.deliver()
    return [output.num_tokens.tolist() for output in harness.outputs[-count:]]


def test_name_leads_to_the_class():
    assert resolve_target("scheduler", "prefill-first")[0] is PrefillFirstScheduler


def test_decodes_wait_while_prompts_are_computed():
    harness = SchedulerHarness(PrefillFirstScheduler, HarnessSpec(num_blocks=40))
    harness.add([1] * 5, max_tokens=4)
    assert steps(harness, 2) == [[5], [1]]
    harness.add([2] * 6, max_tokens=4)
    harness.add([3] * 7, max_tokens=4)
    assert steps(harness, 2) == [[6, 7], [1, 1, 1]]
    harness.drain()


def test_prompt_is_split_only_if_no_step_holds_it():
    harness = SchedulerHarness(PrefillFirstScheduler, HarnessSpec(num_blocks=40))
    harness.add([1] * 10, max_tokens=2)
    harness.add([2] * 9, max_tokens=2)
    harness.add([3] * 20, max_tokens=2)
    assert steps(harness, 4) == [[10], [9], [16], [4]]
    harness.drain()
