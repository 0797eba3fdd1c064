"""Tests of the scheduler suite about requests that reach a limit exactly. Test process."""

from __future__ import annotations

from typing import Any, Protocol

from tenonry.outputs import FinishReason
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.rules import RIGHT_ENDING, expect
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Send, send

WHOLE = (("enable_chunked_prefill", False),)
# Engines, and a request that just fits: the budget of a step, the pool, the longest sequence.
JUST_FITS: dict[str, tuple[HarnessSpec, Send]] = {
    "a whole step": (
        HarnessSpec(max_num_batched_tokens=32, config=WHOLE),
        Send(length=31, max_tokens=4),
    ),
    "the pool": (HarnessSpec(max_model_len=64, num_blocks=5), Send(length=17, max_tokens=4)),
    "max_model_len": (HarnessSpec(), Send(length=31, max_tokens=9)),
    "one row, one token at a time": (
        HarnessSpec(max_num_seqs=1, max_num_batched_tokens=1, num_blocks=5, max_model_len=20),
        Send(length=15, max_tokens=6),
    ),
}


class _Engines(Protocol):
    """Any suite whose engines are around the scheduler under test."""

    def harness(self, spec: HarnessSpec = ..., **parts: Any) -> SchedulerHarness:
        """A fresh engine."""
        ...


class LimitSuite:
    """Part of `SchedulerContract`."""

    def test_requests_that_just_fit_are_served(self: _Engines) -> None:
        """A request that reaches a limit exactly is not rejected, and gets all of its tokens."""
        for name, (spec, ask) in JUST_FITS.items():
            harness = self.harness(spec)
            for request in (ask, ask):
                entry = send(harness, request)
                harness.drain()
                how = entry.finished
                served = how is not None and how.reason is FinishReason.LENGTH
                expect(served, RIGHT_ENDING, "{} fits {}, but ended with {}", entry, name, how)
