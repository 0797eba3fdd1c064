"""Types of what a scheduler returns, so that a wrong one is named with its method. Test process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from tenonry.stats import SchedulerStats
from tenonry.step import SchedulerOutput
from tenonry_testkit.rules import DECLARED_TYPE, expect

P = ParamSpec("P")
T = TypeVar("T")
TYPES: dict[str, tuple[type[Any], ...]] = {
    "schedule": (SchedulerOutput,),
    "update_from_output": (Mapping,),
    "finish_requests": (Sequence,),
    "has_requests": (bool, np.bool_, int),
    "get_request_counts": (Sequence,),
    "make_stats": (SchedulerStats,),
    "reset_prefix_cache": (bool, np.bool_, int),
}


def answer_of(call: Callable[P, T], *args: P.args, **fields: P.kwargs) -> T:
    """Call a method of a scheduler. Raises RuleBroken for a result of another type than the interface declares."""
    answer = call(*args, **fields)
    name = getattr(call, "__name__", "")
    types = TYPES.get(name, (object,))
    expect(isinstance(answer, types), DECLARED_TYPE, "{}() returned {!r:.200}", name, answer)
    return answer
