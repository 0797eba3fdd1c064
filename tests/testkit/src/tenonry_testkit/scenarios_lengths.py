"""Length scenarios of the scheduler suite: requests that never fit, and length-dependent K. Test process."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tenonry.kv_cache import KVCacheGroup, LengthClasses
from tenonry.outputs import FinishReason
from tenonry.step import Media
from tenonry_testkit.fakes.tokens import RECURRENT
from tenonry_testkit.fakes.worker_options import fake_group
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.rules import (
    CACHE_IS_PRIVATE,
    FINDS_PREFIXES,
    NEVER_FITS,
    RESTARTS,
    RIGHT_ENDING,
    expect,
)
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Send, send

IMAGES = (("max_images", 4),)
WHOLE = (("enable_chunked_prefill", False),)
ORIGINAL = 12  # tokens


def _pieces(*spans: tuple[int, int]) -> Media:
    """Images at (first token, number of tokens), each of them indivisible."""
    places = np.array(spans, np.int64)
    return Media(places, np.zeros((len(spans), 32), np.uint8), [{} for _ in spans], places)


# By name: an engine, its largest request, and one beyond the limit; as arguments of `SchedulerHarness.add`.
LIMITS: dict[str, tuple[HarnessSpec, dict[str, Any], dict[str, Any]]] = {
    "the pool": (
        HarnessSpec(max_model_len=64, num_blocks=5),
        {"prompt": range(17), "max_tokens": 4},
        {"prompt": range(17), "max_tokens": 5},
    ),
    "tokens left to generate": (
        HarnessSpec(),
        {"prompt": range(31), "max_tokens": 1},
        {"prompt": range(32), "max_tokens": 1},
    ),
    "a whole step": (
        HarnessSpec(
            num_blocks=40, config=(("enable_chunked_prefill", False), ("max_model_len", None))
        ),
        {"prompt": range(16), "max_tokens": 6},
        {"prompt": range(17), "max_tokens": 6},
    ),
    "a piece that fills the step": (
        HarnessSpec(max_num_seqs=1, max_num_batched_tokens=8, config=IMAGES),
        {"prompt": range(12), "media": _pieces((3, 8))},
        {"prompt": range(12), "media": _pieces((2, 9))},
    ),
    "a piece at the end of the prompt": (
        HarnessSpec(config=IMAGES),
        {"prompt": range(9), "media": _pieces((0, 3), (3, 6))},
        {"prompt": range(9), "media": _pieces((1, 3), (4, 6))},
    ),
    "a piece of a row among others": (
        HarnessSpec(max_num_seqs=4, max_num_batched_tokens=16, config=IMAGES),
        {"prompt": range(20), "media": _pieces((5, 13))},
        {"prompt": range(20), "media": _pieces((2, 14))},
    ),
}


def nothing_waits_for_ever(make_harness: MakeHarness) -> None:
    """Check that an impossible request ends in an error on arrival; its neighbours are served."""
    for name, (spec, fits, too_much) in LIMITS.items():
        for depth in (1, 2):
            harness = make_harness(dataclasses.replace(spec, depth=depth))
            before = harness.add(**fits)
            impossible = harness.add(**too_much)
            how = impossible.finished
            rejected = how is not None and how.reason is FinishReason.ERROR
            expect(
                rejected, NEVER_FITS, "{} exceeds {}, but add_request() took it", impossible, name
            )
            after = [harness.add(**fits) for _ in range(2)]
            harness.drain()
            for entry in (before, *after):
                how = entry.finished
                served = how is not None and how.reason is FinishReason.LENGTH
                expect(served, RIGHT_ENDING, "{} fits {}, but ended with {}", entry, name, how)


# ---------------------------------------------------------------------------------------------------------- lengths
def _group(kind: str, lengths: LengthClasses | None = None) -> tuple[KVCacheGroup]:
    return (KVCacheGroup(layers=("layer.0",), kind=kind, bytes_per_token=8, lengths=lengths),)


def _serve(harness: SchedulerHarness, length: int, **fields: Any) -> int:
    """Serve a prompt of one family to its end; returns the number of cached tokens."""
    entry = send(harness, Send(family=1, length=length, **fields))
    harness.drain()
    return entry.num_cached or 0


def lengths_are_kept_apart(make_harness: MakeHarness, *, finds: bool) -> None:
    """Check that prompts of one class share their prefix, if the scheduler shares any (`finds`), and others do not."""
    spec = HarnessSpec(num_blocks=40)
    for change in ({}, {"grows": True}, {"restarts": True}):
        rule = LengthClasses(ORIGINAL, **change)
        harness = make_harness(spec, groups=_group("full", rule))
        found = [_serve(harness, length, max_tokens=1) for length in (9, 12, 13, 17, 17, 21)]
        shared = [0, 8, 0, 0 if rule.grows else 12, 16, 0 if rule.grows else 16]
        most = [min(here, limit) for here, limit in zip(found, shared, strict=True)]
        expect(found == most, CACHE_IS_PRIVATE, "{}: finds {}, at most {}", rule, found, shared)
        expect(not finds or found == shared, FINDS_PREFIXES, "{}: {} of {}", rule, found, shared)
    states = dataclasses.replace(spec, windows=(RECURRENT, 0), num_state_slots=4)
    opaque = _group("opaque")
    for engine, groups in ((spec, opaque), (states, (fake_group(0, RECURRENT), *opaque))):
        harness = make_harness(engine, groups=groups)
        found = [_serve(harness, 17, max_tokens=2) for _ in range(2)]
        expect(found == [0, 0], CACHE_IS_PRIVATE, "a worker that shares no prefix, yet {}", found)


def rows_restart(make_harness: MakeHarness, depth: int) -> None:
    """Check that a request that started with the original length at most is recomputed for its later tokens."""
    rule = LengthClasses(ORIGINAL, restarts=True)
    asks = [
        Send(family=1, length=9, max_tokens=12),
        Send(family=1, length=9, max_tokens=3),
        Send(family=1, length=12, max_tokens=9, stop_after=7, tail=1),
        Send(family=2, length=13, max_tokens=6),
        Send(family=3, length=11, max_tokens=1),
        Send(family=3, length=11, max_tokens=2),
    ]
    for together in (asks[:1], asks):
        spec = HarnessSpec(depth=depth, num_blocks=24)
        harness = make_harness(spec, groups=_group("full", rule))
        for ask in together:
            send(harness, ask)
        for _ in range(harness.max_steps_left()):
            if not harness.turn():
                break
            for stay in harness.step_checker.rows.values():
                is_kept = stay.num_known > ORIGINAL or stay.num_computed <= ORIGINAL
                expect(is_kept, RESTARTS, "{} computes token {}", stay.entry, stay.num_computed)
                is_alone = len(together) == 1 and stay.entered_at
                expect(not is_alone, RESTARTS, "{} keeps {} tokens", stay.entry, stay.entered_at)
        harness.drain()
