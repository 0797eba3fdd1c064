"""Scenario of the scheduler suite about the request fields of a new row. Test process."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonry.step import Adapter, Media
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.spec import HarnessSpec

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5)
# By field of `NewRow`: requests that differ in this field only, as arguments of `SchedulerHarness.add`.
REQUESTS: dict[str, tuple[dict[str, Any], ...]] = {
    "token_ids": ({}, {"prompt": (*PROMPT[:-1], 7)}, {"num_delivered": 3}),
    "num_output": ({"num_delivered": 4}, {"num_delivered": 1}),
    "sampling": (
        {"sampling": {"repetition_penalty": 1.5}},
        {"sampling": {"top_p": 0.5, "logit_bias": {5: -3.0}}},
        {"seed": 7},
    ),
    "stop_token_ids": ({"stop_token_ids": (64, 65)}, {"stop_token_ids": (66,)}),
    "bad_words": ({"bad_words": ((7, 8), (9,))}, {"bad_words": ((10,),)}),
    "adapter": ({"adapter": Adapter("a", "1")}, {"adapter": Adapter("a", "2")}, {}),
    "features": (
        {"features": {"tenant": np.array([1])}},
        {"features": {"tenant": np.array([2])}},
        {},
    ),
    "media": (
        {"media": Media(np.array([[2, 3]]), np.full((1, 32), 1, np.uint8), [{}])},
        {"media": Media(np.array([[2, 3]]), np.full((1, 32), 2, np.uint8), [{}])},
        {},
    ),
}


def rows_have_their_fields(make_harness: MakeHarness, field: str, depth: int) -> None:
    """Run, preempt and rerun requests; the checks of the harness compare every new row."""
    config = (("max_images", 4), ("max_loras", 2))
    harness = make_harness(HarnessSpec(depth=depth, num_blocks=40, config=config))
    for request in REQUESTS[field]:
        harness.add(**{"prompt": PROMPT, "max_tokens": 9, **request})
    for _ in range(6):
        harness.turn()
    harness.reset_prefix_cache(reset_running_requests=True)
    harness.drain()
