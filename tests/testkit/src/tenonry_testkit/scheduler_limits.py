"""Limit tests of the scheduler suite, for single requests and combinations. Test process."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol

import pytest

from tenonry.outputs import FinishReason
from tenonry.step import Adapter
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.rules import RIGHT_ENDING, expect
from tenonry_testkit.scenarios_continuous import requests_start_beside_others
from tenonry_testkit.scenarios_costs import limits_are_free
from tenonry_testkit.scenarios_passing import few_pass
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Abort, Send, Turn, play, send

LOGPROBS = {"max_num_batched_tokens": 300, "max_model_len": 300, "block_size": 16, "num_blocks": 80}
ENCODES_6 = (("max_images", 4), ("max_encoder_tokens", 6))
WHOLE = (("enable_chunked_prefill", False),)
# Engines, and their largest request: by the budget of a step, the pool, the longest sequence.
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

# Windows by group, whose blocks return to a pool of exactly one sequence, and tokens of a step.
WINDOWS = (((5,), 1), ((5,), 3), ((6,), 16), ((9,), 5), ((0, 6), 4), ((0, 6), 16), ((4, 9), 3))


ADAPTERS = (Adapter("a", "1"), Adapter("b", "1"), None, Adapter("a", "2"), Adapter("a", "1"))
# Engines, and requests that cannot all share a step.
TAKE_TURNS: dict[str, tuple[HarnessSpec, list[Send]]] = {
    "adapters": (
        HarnessSpec(num_blocks=40, config=(("max_loras", 1),)),
        [Send(family=number, adapter=adapter) for number, adapter in enumerate(ADAPTERS)],
    ),
    "images": (
        HarnessSpec(num_blocks=40, config=ENCODES_6),
        [Send(family=number, length=16, images=(5, 4)) for number in range(5)],
    ),
    "small images behind large ones": (
        HarnessSpec(num_blocks=40, config=ENCODES_6),
        [
            Send(family=number, length=13, images=(1,) if number % 2 else (5, 4))
            for number in range(5)
        ],
    ),
    "indivisible images": (
        HarnessSpec(num_blocks=40, config=ENCODES_6),
        [
            Send(family=number, length=24, images=(5, 4, 6)[number % 2 :], whole=number != 3)
            for number in range(5)
        ],
    ),
    **{
        f"indivisible images in the rest of {budget} tokens": (
            HarnessSpec(
                max_num_seqs=3,
                num_blocks=60,
                max_num_batched_tokens=budget,
                config=(("max_images", 4),),
            ),
            [
                Send(length=1, max_tokens=9),
                Send(family=1, length=20, images=(6, 5), whole=True),
                Send(family=3, length=17, images=(5, 6), whole=True),
                Send(family=2, length=6),
            ],
        )
        for budget in (8, 9, 10, 11)
    },
    "images of whole prompts": (
        HarnessSpec(num_blocks=40, max_num_batched_tokens=32, config=(*ENCODES_6, *WHOLE)),
        [
            Send(family=number, length=13 + number, images=(5, 4)[number % 2 :] * (number != 2))
            for number in range(5)
        ],
    ),
    "the rest of a step": (
        HarnessSpec(num_blocks=40, max_num_batched_tokens=32, config=WHOLE),
        [Send(length=1, max_tokens=9), Send(family=1, length=31), Send(family=2, length=31)],
    ),
    "exactly the rest of a step": (
        HarnessSpec(num_blocks=40, max_num_batched_tokens=32, config=WHOLE),
        [Send(length=20), Send(family=1, length=12), Send(family=2, length=11), Send(length=1)],
    ),
    "as many rows as tokens": (
        HarnessSpec(max_num_seqs=4, max_num_batched_tokens=4, num_blocks=40),
        [Send(family=number, length=11 - 3 * number, max_tokens=9) for number in range(4)],
    ),
    "another adapter in a full step": (
        HarnessSpec(num_blocks=40, max_num_batched_tokens=8, config=(("max_loras", 1),)),
        [Send(length=20, adapter=ADAPTERS[0]), Send(family=1, length=5, adapter=ADAPTERS[3])],
    ),
    "rows that outgrow a whole step": (
        HarnessSpec(
            max_num_seqs=3,
            max_num_batched_tokens=12,
            num_blocks=10,
            config=(*WHOLE, ("max_model_len", None)),
        ),
        [Send(family=number, length=9, max_tokens=14 + number) for number in range(3)],
    ),
    "a part of a prompt in the rest": (
        HarnessSpec(num_blocks=40),
        [Send(family=number, length=11 + number) for number in range(4)],
    ),
    "the rest of the share of prompts": (
        HarnessSpec(**LOGPROBS),
        [
            Send(length=1, max_tokens=9),
            *(
                Send(family=number, length=length, max_tokens=1, prompt_logprobs=1)
                for number, length in enumerate((255, 9, 257))
            ),
        ],
    ),
    "a decode behind half a prompt": (
        HarnessSpec(num_blocks=40, max_num_batched_tokens=10, config=ENCODES_6),
        [Send(length=24, images=(5, 4)), *(Send(family=1, length=2, max_tokens=9),) * 2],
    ),
    "long prompts beside short ones": (
        HarnessSpec(num_blocks=160, max_model_len=200),
        [
            Send(length=150, max_tokens=2),
            Send(family=1, length=5, max_tokens=12),
            Send(family=2, length=80, max_tokens=2),
            Send(family=3, length=7, max_tokens=9),
        ],
    ),
    "several pieces of an image": (
        HarnessSpec(num_blocks=40, config=ENCODES_6),
        [
            Send(
                family=number,
                length=24,
                images=(9, 6)[number % 2 :],
                whole=True,
                pieces=2 + number % 2,
            )
            for number in range(4)
        ],
    ),
    "an image behind the rest of a step": (
        HarnessSpec(num_blocks=40, max_num_batched_tokens=32, config=(*ENCODES_6, *WHOLE)),
        [Send(length=20), Send(family=1, length=20, images=(4,)), Send(family=2, length=5)],
    ),
    "an image behind the last block": (
        HarnessSpec(num_blocks=8, config=ENCODES_6),
        [Send(length=15, max_tokens=1), Send(family=1, length=20, images=(5,))],
    ),
    "large images": (
        HarnessSpec(num_blocks=40, config=ENCODES_6),
        [Send(family=number, length=16, images=(9, 1 + number)) for number in range(5)],
    ),
}


class _Engines(Protocol):
    """Any suite with engines around the scheduler under test."""

    is_continuous: ClassVar[bool]

    def harness(self, spec: HarnessSpec = ..., **parts: Any) -> SchedulerHarness:
        """Return a fresh engine."""
        ...


class LimitSuite:
    """Part of `SchedulerContract`. `is_continuous`: True requires that requests start beside running ones."""

    is_continuous: ClassVar[bool] = False

    def test_requests_that_just_fit_are_served(self: _Engines) -> None:
        """A request exactly at a limit is not rejected, and receives all its tokens."""
        for name, (spec, ask) in JUST_FITS.items():
            harness = self.harness(spec)
            for request in (ask, ask):
                entry = send(harness, request)
                harness.drain()
                how = entry.finished
                served = how is not None and how.reason is FinishReason.LENGTH
                expect(served, RIGHT_ENDING, "{} fits {}, but ended with {}", entry, name, how)

    def test_windows_fit_into_the_pool_of_one_sequence(self: _Engines) -> None:
        """Blocks behind a window return in time: in the least pool that is planned, requests of any length run."""
        for windows, budget in WINDOWS:
            spec = HarnessSpec(windows=windows, max_num_batched_tokens=budget, max_num_seqs=1)
            harness = self.harness(spec)
            for length in (31, 4, 13, 20, 27):
                entry = send(harness, Send(family=length, length=length, max_tokens=32))
                harness.drain()
                how = entry.finished
                served = how is not None and how.reason is FinishReason.LENGTH
                expect(served, RIGHT_ENDING, "{} of windows {}: {}", entry, windows, how)
                again = entry.request.num_preemptions
                expect(not again, RIGHT_ENDING, "{} alone is preempted {} times", entry, again)

    @pytest.mark.parametrize("depth", [1, 2])
    def test_requests_that_cannot_share_a_step_take_turns(self: _Engines, depth: int) -> None:
        """Adapters and images alternate: each request is served, together, one by one, and after an abort."""
        for spec, asks in TAKE_TURNS.values():
            harness = self.harness(dataclasses.replace(spec, depth=depth))
            for turns in (1, 2, 3):
                play(harness, [*asks, Turn(turns), Abort(None)])
                harness.drain()
            for together in (5, 1, 2):
                for number, ask in enumerate(asks, 1):
                    send(harness, ask)
                    if number % together == 0:
                        harness.drain()
                harness.drain()
            play(harness, [*asks, Turn(2), Abort(0), Turn(1), Abort(2), *asks])
            harness.drain()

    @pytest.mark.parametrize("depth", [1, 2])
    def test_limits_delay_only_what_exceeds_them(self: _Engines, depth: int) -> None:
        """Images, adapters and log-probabilities within the limits of a step cost no further step."""
        limits_are_free(self.harness, depth)

    @pytest.mark.parametrize("depth", [1, 2])
    def test_few_pass_a_request_that_waits(self: _Engines, depth: int) -> None:
        """What waits for an adapter or an image is passed by at most `max_num_seqs` that need neither."""
        few_pass(self.harness, depth)

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_requests_start_beside_running_ones(self: _Engines, depth: int) -> None:
        """If `is_continuous` is True, the next step starts as many waiting requests as fit."""
        if self.is_continuous:
            requests_start_beside_others(self.harness, depth)
