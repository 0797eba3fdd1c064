"""Scenario of the scheduler suite: requests that wait for an adapter or an image are passed by few. Test process."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tenonry.step import Adapter, Media
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Send, send

LORAS = (("max_loras", 1),)
IMAGES = (("max_images", 8), ("max_encoder_tokens", 6))
PASSING = Send(family=2, length=2, max_tokens=1)
NUM_PASSING = 24


def first_tokens(count: int) -> Media:
    """An image of a prompt's first tokens."""
    return Media(np.array([[0, count]]), np.full((1, 32), 1, np.uint8), [{}])


# Engines; what runs for long, and as arguments of `SchedulerHarness.add` what cannot share its steps.
ENGINES: tuple[tuple[HarnessSpec, Send, dict[str, Any]], ...] = (
    (
        HarnessSpec(num_blocks=40, config=LORAS),
        Send(length=3, max_tokens=16, adapter=Adapter("a", "1")),
        {"adapter": Adapter("b", "2")},
    ),
    (
        HarnessSpec(num_blocks=40, config=IMAGES),
        Send(length=31, images=(5, 5, 5, 5, 4)),
        {"media": first_tokens(4)},
    ),
)


def few_pass(make_harness: MakeHarness, depth: int) -> None:
    """While one request waits, at most `max_num_seqs` of those that could share the steps end before it starts."""
    for spec, long, blocked in ENGINES:
        harness = make_harness(dataclasses.replace(spec, depth=depth))
        send(harness, long)
        harness.add(range(7), 2, **blocked)
        for _ in range(NUM_PASSING):
            send(harness, PASSING)
        harness.add(range(7), 2, **blocked)
        for _ in range(harness.max_steps_left()):
            if not harness.turn():
                break
            if harness.scheduler.starvation_free:
                harness.step_checker.check_starvation()
        harness.drain()
