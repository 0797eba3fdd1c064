"""Scenario of the scheduler suite: random but reproducible traffic in random engines. Test process.

Searches begin with small programs, and quick checks end before they grow. These programs are large and combine the
subjects of all other tests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random
from typing import Any

from tenonry.kv_cache import KVCacheGroup, LengthClasses
from tenonry.step import Adapter
from tenonry_testkit.fakes.connector import STORES, MemoryOptions
from tenonry_testkit.fakes.tokens import RECURRENT
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.scenarios_blocks import memory_connectors
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.scenarios_numbers import Numbers, compare
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import (
    Abort,
    Deliver,
    FailRow,
    Launch,
    Op,
    Reset,
    Send,
    Tick,
    Turn,
    apply,
    play,
)

STORE = "scheduler contract"
SIZES = ((2, 5), (4, 16), (4, 7), (1, 32), (3, 6), (6, 20))  # max_num_seqs, max_num_batched_tokens
ADAPTERS = (None, None, Adapter("a", "1"), Adapter("b", "1"), Adapter("a", "2"))
# Kinds of engines, with fields of `HarnessSpec`.
ENGINES: tuple[dict[str, Any], ...] = (
    {},
    {"config": (("max_loras", 2),)},
    {"config": (("max_images", 4), ("max_encoder_tokens", 6))},
    {"config": (("enable_chunked_prefill", False), ("max_images", 4), ("max_encoder_tokens", 6))},
    {"config": (("enable_chunked_prefill", False),)},
    {"round_tokens": 6},
    {"round_tokens": 5, "short_rounds": 3, "config": (("drafter", "ngram"),)},
    {"feeds_back": False, "vocab_size": 5},
    {"grammar_asks": 2},
    {"windows": (0, 6)},
    {"windows": (5,), "block_size": 2},
    {"windows": (0, RECURRENT), "num_state_slots": 3},
    {"windows": (0, RECURRENT), "num_state_slots": 8, "block_size": 2},
    {"block_size": 1},
    {"enable_prefix_caching": False},
)


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """An engine and its traffic. `events`: includes aborts, failing rows and cache resets."""

    spec: HarnessSpec
    ops: list[Op]
    events: bool
    lengths: LengthClasses | None = None
    connector: MemoryOptions | None = None


def drawn(number: int) -> Drawn:
    """Engine and traffic of this number."""
    rng = Random(number)
    fields = dict(ENGINES[number % len(ENGINES)])
    is_plain = fields.keys() <= {"block_size"}
    connector = lengths = None
    if is_plain and number >= len(ENGINES):
        options = {"asynchronous": rng.random() < 0.6, "num_undecided": rng.choice((0, 2))}
        connector = MemoryOptions(store=STORE, fail_loads=rng.choice((0, 0, 3)), **options)
    elif is_plain:
        lengths = LengthClasses(12, restarts=True)
    seqs, budget = rng.choice(SIZES)
    if ("enable_chunked_prefill", False) in fields.get("config", ()):
        budget = 32
    depth = 1 if "round_tokens" in fields else rng.randint(1, 3)
    spec = HarnessSpec(depth=depth, max_num_seqs=seqs, max_num_batched_tokens=budget, **fields)
    num_blocks = spec.least_blocks() + rng.choice((0, 2, 6, 30))
    spec = dataclasses.replace(spec, num_blocks=num_blocks)
    events = rng.random() < 0.5
    ops = _traffic(rng, spec, events=events)
    return Drawn(spec, ops, events, lengths, connector)


def _traffic(rng: Random, spec: HarnessSpec, *, events: bool) -> list[Op]:
    ops: list[Op] = []
    for _ in range(3):
        for _ in range(rng.randint(2, 6)):
            ask = _send(rng, spec)
            ops += [ask] * rng.choice((1, 1, 1, 2))
        ops.append(Turn(rng.randint(0, 9)))
        for _ in range(rng.randint(0, 3)):
            ops.append(rng.choice((Launch(), Deliver(), Tick(0.01), Tick(40.0))))
            if events:
                others: Sequence[Op] = (Abort(rng.randint(0, 5)), FailRow(0), Reset(), Reset(True))
                ops.append(rng.choice(others))
        ops.append(Turn(rng.randint(0, 12)))
    return ops


def _send(rng: Random, spec: HarnessSpec) -> Send:
    config = dict(spec.config)
    has_grammar = spec.grammar_asks > 1 and rng.random() < 0.5
    images = ()
    if "max_images" in config and rng.random() < 0.7:
        images = tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 3)))
    family, length = rng.randint(0, 2), rng.choice((1, 2, 4, 5, 8, 11, 12, 13, 17, 24, 31))
    return Send(
        family=family,
        length=length,
        tail=rng.choice((0, 0, 1)),
        max_tokens=rng.randint(1, 20),
        min_tokens=rng.choice((0, 0, 3)),
        stop_after=rng.choice((None, None, 1, 6)),
        num_delivered=rng.choice((0, 0, 0, 3)),
        priority=rng.randint(0, 2),
        client=rng.randint(0, 1),
        adapter=rng.choice(ADAPTERS) if "max_loras" in config else None,
        cache_salt=rng.choice((None, None, None, "tenant")),
        logprobs=rng.choice((None, None, None, 1)),
        prompt_logprobs=rng.choice((None, None, None, None, 1)),
        has_grammar=has_grammar,
        images=images,
        whole=bool(images) and spec.max_num_batched_tokens - spec.max_num_seqs > 9,
        pieces=1 + length % 2,
    )


def traffic_is_served(make_harness: MakeHarness, number: int) -> None:
    """Serve the traffic of a number to its end; with a KV connector twice, by engines that share its store.

    The statistics add up if no request is aborted and no load is lost.
    """
    case = drawn(number)
    STORES.pop(STORE, None)
    try:
        for _ in range(2 if case.connector else 1):
            parts: dict[str, Any] = {}
            if case.connector is not None:
                parts["connectors"] = memory_connectors(case.spec, case.connector)
            if case.lengths is not None:
                group = KVCacheGroup(
                    layers=("layer.0",), kind="full", bytes_per_token=8, lengths=case.lengths
                )
                parts["groups"] = (group,)
            harness = make_harness(case.spec, **parts)
            _serve(harness, case)
    except Exception as error:
        error.add_note(f"in engine {number}: {case.spec}, {case.connector or case.lengths}")
        error.add_note(f"after {case.ops}")
        raise
    finally:
        STORES.pop(STORE, None)


def _serve(harness: SchedulerHarness, case: Drawn) -> None:
    if case.events or case.connector is not None:
        play(harness, case.ops)
        harness.drain()
        return
    numbers = Numbers(harness)
    for op in case.ops:
        apply(harness, op)
        numbers.take()
    for _ in range(harness.max_steps_left()):
        if not harness.turn():
            break
        numbers.take()
    numbers.take()
    compare(harness, numbers.sums)
    harness.drain()
