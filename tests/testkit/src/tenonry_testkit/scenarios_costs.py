"""Scenario of the scheduler suite: a limit costs only those requests that exceed it. Test process."""

from __future__ import annotations

import dataclasses
from typing import Any

from tenonry.step import Adapter
from tenonry_testkit.rules import FREE_LIMITS, expect
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Send, send

IMAGES = (("max_images", 4), ("max_encoder_tokens", 12))
WHOLE = (("enable_chunked_prefill", False),)
ROOMY = HarnessSpec(max_num_batched_tokens=64, max_model_len=64, num_blocks=64)
LONG = HarnessSpec(max_num_batched_tokens=320, max_model_len=300, block_size=16, num_blocks=80)
A, B, OTHER_A = Adapter("a", "1"), Adapter("b", "2"), Adapter("a", "2")
# Engines, and requests: by what has a limit, which they reach together in one step; without it they are the same.
WITHIN: dict[str, tuple[HarnessSpec, list[Send]]] = {
    "images of one prompt": (
        dataclasses.replace(ROOMY, config=IMAGES),
        [Send(length=24, images=(5, 4, 3))],
    ),
    "images of several prompts": (
        dataclasses.replace(ROOMY, config=IMAGES),
        [Send(length=12, images=(5,)), Send(family=1, length=16, images=(4, 3)), Send(family=2)],
    ),
    "one large image": (
        dataclasses.replace(ROOMY, config=IMAGES),
        [Send(length=24, images=(20,)), Send(family=1)],
    ),
    "images of whole prompts": (
        dataclasses.replace(ROOMY, config=IMAGES + WHOLE),
        [Send(length=12, images=(5,)), Send(family=1, length=16, images=(4, 3)), Send(family=2)],
    ),
    "large images of a whole prompt": (
        dataclasses.replace(ROOMY, config=IMAGES + WHOLE),
        [Send(length=40, images=(9, 9, 9)), Send(family=1)],
    ),
    "short prompts": (ROOMY, [Send(length=1, max_tokens=6), Send(length=2, max_tokens=6)]),
    "indivisible images": (
        dataclasses.replace(ROOMY, config=IMAGES),
        [Send(length=7, images=(5,), whole=True), Send(family=1, length=16, images=(4, 3), whole=True)],
    ),
    "adapters": (
        dataclasses.replace(ROOMY, config=(("max_loras", 2),)),
        [Send(family=number, adapter=adapter) for number, adapter in enumerate((A, None, B, A))],
    ),
    "adapters of one name": (
        dataclasses.replace(ROOMY, config=(("max_loras", 2),)),
        [Send(family=number, adapter=adapter) for number, adapter in enumerate((A, OTHER_A))],
    ),
    "log-probabilities of prompts": (
        LONG,
        [Send(length=250, prompt_logprobs=1), Send(family=1, length=6, prompt_logprobs=1), Send(family=2)],
    ),
    "log-probabilities of one prompt": (LONG, [Send(length=256, prompt_logprobs=1), Send(family=2)]),
    "log-probabilities of a whole prompt": (
        dataclasses.replace(LONG, config=WHOLE),
        [Send(length=290, prompt_logprobs=1), Send(family=1)],
    ),
}  # fmt: skip


def limits_are_free(make_harness: MakeHarness, depth: int) -> None:
    """Compare the number of steps with that of the same prompts without images, adapters and log-probabilities."""
    without: dict[str, Any] = {
        "images": (), "whole": False, "adapter": None, "prompt_logprobs": None,
    }  # fmt: skip
    for name, (spec, asks) in WITHIN.items():
        numbers = []
        for fields in (without, {}):
            harness = make_harness(dataclasses.replace(spec, depth=depth))
            for ask in asks:
                send(harness, dataclasses.replace(ask, **fields))
            harness.drain()
            preempted = harness.step_checker.num_preemptions
            expect(not preempted, FREE_LIMITS, "{}: {} preemptions", name, preempted)
            numbers.append(sum(len(output.row) > 0 for output in harness.outputs))
        plain, limited = numbers
        expect(limited <= plain, FREE_LIMITS, "{}: {} steps instead of {}", name, limited, plain)
