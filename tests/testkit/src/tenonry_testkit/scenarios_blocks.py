"""KV block scenarios of the scheduler suite: the pool, the prefix cache, connectors. Test process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tenonry.interfaces.kv_connector import KVConnectorContext, KVConnectorRole
from tenonry.outputs import FinishReason
from tenonry.step import Adapter, Media
from tenonry_testkit.fakes.connector import STORES, MemoryConnector, MemoryOptions
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.rules import CACHE_IS_PRIVATE, NOTHING_LEAKS, expect
from tenonry_testkit.scenarios_endings import MakeHarness, play_out
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Op, Send, prompt_of, send


def the_pool_is_whole(make_harness: MakeHarness, depth: int, ops: Sequence[Op]) -> None:
    """Run the operations, then a request that needs every block; twice, to detect a slow leak."""
    harness = make_harness(HarnessSpec(depth=depth, max_num_batched_tokens=12))
    for _ in range(2):
        play_out(harness, ops)
        largest = send(
            harness, Send(family=7, length=harness.spec.max_model_len - 4, max_tokens=99)
        )
        harness.drain()
        whole = largest.finished is not None and largest.finished.reason is FinishReason.LENGTH
        expect(
            whole,
            NOTHING_LEAKS,
            f"{largest} needs the whole pool, and ended with {largest.finished}",
        )
    if harness.scheduler.reset_prefix_cache():
        harness.check_end()


def the_cache_is_private(make_harness: MakeHarness, spec: HarnessSpec) -> None:
    """Check that a prompt with another salt, adapter or prompt_logprobs is recomputed; after a reset, every prompt."""
    harness = make_harness(dataclasses.replace(spec, num_blocks=3 * spec.num_blocks))
    plain = Send(family=1, length=21, max_tokens=2)
    changes: list[dict[str, Any]] = [
        {},
        {"cache_salt": "tenant-1"},
        {"cache_salt": "tenant-2"},
        {"adapter": Adapter("a", "1")},
        {"adapter": Adapter("a", "2")},
        {"adapter": Adapter("a", "1"), "cache_salt": "tenant-1"},
        {"prompt_logprobs": 1},
        {"features": {"tenant": np.array([1])}},
        {"features": {"tenant": np.array([2])}},
        {"features": {"tenant": np.array([1])}, "cache_salt": "tenant-1"},
        {"media": _image(1)},
        {"media": _image(2)},
        {"media": _image(2, whole=True)},
    ]
    prompt = prompt_of(plain, spec)
    for change in changes:
        entry = harness.add(prompt, 2, **change)
        harness.drain()
        expect(
            not entry.num_cached,
            CACHE_IS_PRIVATE,
            f"{change or 'the first'} finds {entry.num_cached} tokens",
        )
    done = harness.reset_prefix_cache()
    expect(done, CACHE_IS_PRIVATE, "reset_prefix_cache() of an idle scheduler returned False")
    for change in (*changes[-1:], *changes[:2]):  # the latest one is in every cache
        entry = harness.add(prompt, 2, **change)
        harness.drain()
        expect(
            not entry.num_cached,
            CACHE_IS_PRIVATE,
            f"after a reset {change} finds {entry.num_cached} tokens",
        )
    _a_reset_ends_sharing(make_harness, spec)


def _a_reset_ends_sharing(make_harness: MakeHarness, spec: HarnessSpec) -> None:
    """A row goes on after a reset; what it computes on blocks from before is found by no later request."""
    harness = make_harness(dataclasses.replace(spec, num_blocks=3 * spec.num_blocks))
    row = send(harness, Send(family=1, length=9, max_tokens=20))
    while len(row.token_ids) < 2 and harness.turn():
        pass
    harness.reset_prefix_cache()
    while len(row.token_ids) < 12 and harness.turn():
        pass
    prompt = row.request.source.prompt_token_ids.tolist()
    harness.add(prompt, 1)
    harness.drain()
    later = harness.add([*prompt, *row.expected.token_ids[:11], 1], 1)
    harness.drain()
    cached = later.num_cached or 0
    detail = "{} of 8 tokens that were computed after a reset are found, on blocks from before it"
    expect(cached <= 8, CACHE_IS_PRIVATE, detail, cached)


def _image(content: int, *, whole: bool = False) -> Media:
    """Return an image in the first block of a prompt."""
    places = np.array([[2, 3]])
    digests = np.full((1, 32), content, np.uint8)
    return Media(places, digests, [{}], places if whole else places[:0])


def blocks_come_from_elsewhere(
    make_harness: MakeHarness, how: str, depth: int, ops: Sequence[Op]
) -> None:
    """Fill the store by one engine; load from it by a second one with an empty cache."""
    spec = HarnessSpec(depth=depth, num_blocks=24, max_num_batched_tokens=12)
    options = MemoryOptions(
        store="scheduler contract",
        asynchronous="async" in how,
        fail_loads=10**9 if "always" in how else 2 if "failing" in how else 0,
    )
    STORES.pop(options.store, None)
    try:
        for _ in range(2):
            play_out(make_harness(spec, connectors=memory_connectors(spec, options)), ops)
    finally:
        STORES.pop(options.store, None)


def memory_connectors(
    spec: HarnessSpec, options: MemoryOptions
) -> tuple[MemoryConnector, MemoryConnector]:
    """Return a connector in the scheduler's role and one in the worker's."""
    halves = [
        MemoryConnector(
            KVConnectorContext(
                spec.engine_config(),
                fake_model(),
                role,
                engine_id="memory_dp0",
                kv_cache=spec.kv_cache(),
                options=options,
            )
        )
        for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER)
    ]
    return halves[0], halves[1]
