"""Every backend against attention written out by hand, over random schedules: rows come, grow, pause, leave and return;
prompts go in chunks; blocks are scattered; the last layer is pruned.
"""

from __future__ import annotations

import itertools

import kept_vectors
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry_testkit.tiers import diagonal, nightly_unless
from tenonry_torch_base.attention import pieces
from tenonry_torch_base.attention.base import (
    AttentionBackend,
    AttentionBatch,
    LayerSpec,
    refusal_of,
)
from tenonry_torch_base.attention.kv_storage import STORAGES
from tenonry_torch_base.attention.layer import AttentionLayer, StepPlan
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.buffers import HostBuffers
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend
from tenonry_worker_torch_cpu.attention.invariant import InvariantBackend

BACKENDS = {"sdpa": SdpaBackend, "cpu": CpuBackend, "invariant": InvariantBackend}
BLOCK, ROWS, MAX_LEN, BLOCKS = 8, 6, 160, 130
SHAPES = {
    "plain": {"num_heads": 4, "num_kv_heads": 2},
    "one head": {"num_heads": 2, "num_kv_heads": 2, "window": 11},
    "one KV head": {"num_heads": 3, "num_kv_heads": 1, "softcap": 2.0},
    "all at once": {"num_heads": 4, "num_kv_heads": 2, "window": 70, "softcap": 3.0},
    "unequal sizes": {"num_heads": 4, "num_kv_heads": 2, "value_size": 4},
    "chunks": {"num_heads": 4, "num_kv_heads": 2, "chunk": 13},
    "sinks": {"num_heads": 4, "num_kv_heads": 2, "sinks": True},
    "indexed": {"num_heads": 4, "num_kv_heads": 2, "indexed": True},
    "spans": {"num_heads": 4, "num_kv_heads": 2, "spans": True},
    "spans in a window": {
        "num_heads": 2,
        "num_kv_heads": 1,
        "window": 9,
        "softcap": 2.0,
        "spans": True,
    },
    "indexed with sinks": {
        "num_heads": 4,
        "num_kv_heads": 4,
        "value_size": 4,
        "sinks": True,
        "indexed": True,
    },
    "sinks in a window": {
        "num_heads": 4,
        "num_kv_heads": 1,
        "sinks": True,
        "window": 20,
        "softcap": 2.0,
    },
    "sinks of unequal sizes": {
        "num_heads": 4,
        "num_kv_heads": 2,
        "value_size": 4,
        "sinks": True,
        "chunk": 64,
    },
}


class BackendDriver:
    """A backend with two layers, and a plain copy of every row's K/V as visible to attention: rounded by `kept`."""

    def __init__(self, backend, shape, seed, dtype=torch.float32, kept="auto"):
        self.random = np.random.default_rng(seed)
        size = {"key_size": 8, "value_size": 8} | shape
        self.specs = [LayerSpec(name=f"layer.{i}", index=i, scaling=0.4, **size) for i in range(2)]
        self.dtype = dtype
        self.backend = BACKENDS[backend](self.specs, dtype, torch.device("cpu"))
        self.kept = kept
        self.backend.keep_in(STORAGES[kept](dtype))
        step = StepPlan(self.backend)
        self.layers = [AttentionLayer(spec, step, sinks=self._sinks(spec)) for spec in self.specs]
        self.step = step
        for layer, cache in zip(
            self.layers, self.backend.allocate(BLOCKS, BLOCK).values(), strict=True
        ):
            layer.kv_cache = [cache]
            leave_behind(cache)
        self.table = np.zeros((ROWS, MAX_LEN // BLOCK + 1), np.int32)
        self.generation = np.zeros(ROWS, np.int64)
        self.free = list(self.random.permutation(np.arange(1, BLOCKS)))
        self.known = {}  # row → per layer (keys, values)
        self.blocks = {}

    def _sinks(self, spec):
        sinks = 2 * self.random.standard_normal(spec.num_heads).astype(np.float32)
        return torch.from_numpy(sinks).to(self.dtype) if spec.sinks else None

    def _chosen(self, positions):
        """Some positions up to each query's own, others beyond it (they stay hidden), and places for none."""
        chosen = self.random.integers(-1, np.array(positions)[:, None] + 5, (len(positions), 9))
        chosen[:, 4] = self.random.integers(0, np.array(positions) + 1)
        return torch.from_numpy(chosen)

    def _last_seen(self, num, start):
        """Last position visible to each token: its own, or the end of a piece of its chunk, if there are any."""
        found = []
        for count, begin in zip(num.tolist(), start.tolist(), strict=True):
            last = np.arange(begin, begin + count)
            if self.specs[0].spans and self.random.random() < 0.7:
                low, high = sorted(self.random.integers(0, count + 1, 2).tolist())
                last[low:high] = begin + high - 1
            found.append(last)
        return np.concatenate(found)

    def enter(self, row, length=0):
        self.generation[row] += 1
        self.blocks[row] = []
        self.known[row] = [(torch.empty(0), torch.empty(0)) for _ in self.specs]

    def leave(self, row):
        del self.known[row]
        self.free.extend(self.blocks.pop(row))
        self.backend.release(np.array([row], np.int32))

    def length(self, row):
        return len(self.known[row][0][0])

    def run(self, counts, pruned=None):
        """`counts`: row → tokens now. `pruned`: rows whose last token runs in the last layer (None: no pruning)."""
        rows = np.array(list(counts), np.int32)
        num = np.array(list(counts.values()), np.int32)
        start = np.array([self.length(row) for row in counts], np.int32)
        slots = []
        for row, count in counts.items():
            while len(self.blocks[row]) * BLOCK < self.length(row) + count:
                self.blocks[row].append(self.free.pop())
                self.table[row, len(self.blocks[row]) - 1] = self.blocks[row][-1]
            at = np.arange(self.length(row), self.length(row) + count)
            slots.append(self.table[row, at // BLOCK].astype(np.int64) * BLOCK + at % BLOCK)
        batch = self._batch(rows, num, start, np.concatenate(slots))
        self.last_seen = self._last_seen(num, start)
        if self.specs[0].spans:
            batch.last_seen = self.last_seen
        plan = self.backend.plan(batch)
        for number, layer in enumerate(self.layers):
            last = number == len(self.layers) - 1
            self.step.plan = plan
            asked = [(i, t) for i, row in enumerate(counts) for t in range(counts[row])]
            if last and pruned is not None and not layer.spec.indexed:
                keep = np.array([row in pruned for row in counts], np.bool_)
                small = self._batch(
                    rows[keep],
                    np.ones(keep.sum(), np.int32),
                    (start + num - 1)[keep],
                    np.concatenate(slots),
                    plan,
                )
                self.step.plan = self.backend.plan(small)
                asked = [(i, int(num[i]) - 1) for i in np.flatnonzero(keep)]
            self._layer(layer, number, list(counts), num, start, asked)

    def _batch(self, rows, num, start, slots, full_plan=None):
        return AttentionBatch(
            row=rows, num_tokens=num, start=start, seq_lens=start + num, block_table=self.table, slot_mapping=slots,
            generation=self.generation[rows].copy(), put=HostBuffers(torch.device("cpu"), 1).put, full_plan=full_plan,
        )  # fmt: skip

    def _seen(self, vectors):
        """Values visible to attention, in float32."""
        rounded = kept_vectors.rounded(vectors.float().numpy(), self.kept)
        return torch.from_numpy(rounded).to(self.dtype).float()

    def _layer(self, layer, number, rows, num, start, asked):
        spec, total = layer.spec, int(num.sum())

        def random(*shape):
            return torch.from_numpy(self.random.standard_normal(shape).astype(np.float32)).to(
                self.dtype
            )

        query = random(len(asked), spec.num_heads, spec.key_size)
        if spec.key_size == spec.value_size and self.random.random() < 0.5:
            both = random(total, 2 * spec.num_kv_heads, spec.key_size)
            key, value = both.chunk(2, 1)
        else:
            both = None
            key = random(total, spec.num_kv_heads, spec.key_size)
            value = random(total, spec.num_kv_heads, spec.value_size)
        positions = [int(start[i]) + offset for i, offset in asked]
        if spec.indexed:
            layer.chosen = self._chosen(positions)
        got = layer(query, key, value, both)
        first = np.cumsum(num) - num
        for i, row in enumerate(rows):
            keys, values = self.known[row][number]
            span = slice(first[i], first[i] + num[i])
            new_keys, new_values = self._seen(key[span]), self._seen(value[span])
            self.known[row][number] = (
                torch.cat([keys, new_keys]) if len(keys) else new_keys,
                torch.cat([values, new_values]) if len(values) else new_values,
            )
        assert got.shape == (len(asked), spec.num_heads, spec.value_size)
        places = np.array([i for i, _ in asked])
        tolerance = 1e-4 if self.dtype == torch.float32 else 0.05
        for i in np.unique(places):
            mine = np.flatnonzero(places == i)
            keys, values = self.known[rows[i]][number]
            tokens = first[i] + np.array([asked[place][1] for place in mine])
            seen = keys_seen(
                layer, mine, np.array(positions)[mine], len(keys), self.last_seen[tokens]
            )
            wanted = by_hand(layer, query[mine].float(), keys, values, seen)
            torch.testing.assert_close(got[mine].float(), wanted, rtol=tolerance, atol=tolerance)


def leave_behind(cache):
    """NaN everywhere: contents of an earlier owner must never count, not even times zero."""
    for tensor in (cache.key, cache.value):
        tensor.fill_(0xFF if tensor.dtype == torch.uint8 else float("nan"))


def keys_seen(layer, queries, positions, length, last):
    """Visibility of a row's keys to its queries at `positions`, the `queries`-th of the step: [queries, keys]."""
    spec = layer.spec
    keys, positions = torch.arange(length), torch.from_numpy(positions)[:, None]
    seen = keys <= torch.from_numpy(last)[:, None]
    if spec.window:
        seen &= keys > positions - spec.window
    if spec.chunk:
        seen &= keys >= positions - positions % spec.chunk
    if spec.indexed:
        seen &= (layer.chosen[queries][:, None] == keys[:, None]).any(-1)
    return seen


def by_hand(layer, queries, keys, values, seen):
    """A row's queries with their visible keys: [Q, H, D] with [L, K, D] → [Q, H, V]."""
    spec = layer.spec
    shared = torch.arange(spec.num_heads) // spec.group_size
    scores = torch.einsum("qhd,lhd->qhl", queries, keys[:, shared]) * spec.scaling
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    if spec.sinks:
        sinks = layer.sinks.float()[:, None].expand(len(queries), -1, 1)
        scores = torch.cat([scores, sinks], -1)
    weights = torch.softmax(scores, -1)[..., : len(keys)]
    return torch.einsum("qhl,lhv->qhv", weights, values[:, shared])


def schedule(driver, steps):
    """Random steps until the rows are full; mostly decoding, as in serving."""
    choice = driver.random
    for _ in range(steps):
        for row in range(ROWS):
            if row not in driver.known and choice.random() < 0.5:
                driver.enter(row)
        counts = {}
        for row in choice.permutation(list(driver.known)).tolist():
            if driver.length(row) == 0:
                counts[row] = int(choice.choice([1, 3, 7, 60, 61, 90]))
            elif choice.random() < 0.9:
                counts[row] = 1 if choice.random() < 0.9 else int(choice.integers(2, 12))
        if not counts:
            continue
        pruned = {row for row in counts if choice.random() < 0.8} if choice.random() < 0.5 else None
        driver.run(counts, pruned)
        for row in list(driver.known):
            if driver.length(row) > MAX_LEN - 14 or choice.random() < 0.03:
                driver.leave(row)


@pytest.mark.parametrize(("shape", "backend"), diagonal(SHAPES, BACKENDS))
@settings(deadline=None, max_examples=1)
@given(seed=st.integers(0, 2**31))
@pytest.mark.slow
def test_any_schedule_attends_to_exactly_its_own_tokens(backend, shape, seed):
    schedule(BackendDriver(backend, SHAPES[shape], seed), 30)


@pytest.mark.nightly_after(6)
@pytest.mark.parametrize(
    ("shape", "kept"),
    nightly_unless(
        lambda shape, kept: kept == "int8" or shape in {"plain", "sinks in a window"},
        itertools.product(
            ["plain", "one head", "unequal sizes", "sinks in a window", "spans"], ["int8", "fp8"]
        ),
    ),
)
@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, max_examples=1)
@given(seed=st.integers(0, 2**31))
@pytest.mark.slow
def test_attention_sees_what_is_kept_also_in_the_step_that_makes_it(backend, shape, kept, seed):
    """So nothing depends on how a prompt is cut, and a row on no other."""
    schedule(BackendDriver(backend, SHAPES[shape], seed, kept=kept), 30)


@pytest.mark.parametrize("kept", ["auto", "int8"])
@pytest.mark.parametrize("more", [{}, {"chunk": 40, "sinks": True}])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.slow
def test_bfloat16_stays_within_rounding(backend, more, kept):
    driver = BackendDriver(
        backend,
        {"num_heads": 8, "num_kv_heads": 4, "key_size": 32, "value_size": 32} | more,
        3,
        torch.bfloat16,
        kept,
    )
    for row in range(ROWS):
        driver.enter(row)
    driver.run({row: 60 + row for row in range(ROWS)}, set(range(ROWS)))
    for _ in range(8):  # some rows cross a slab's capacity; enough work for the batched products
        driver.run(dict.fromkeys(range(ROWS), 1), set(range(ROWS)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.slow
def test_steady_decoding_across_capacities(backend):
    """Two rows of very different length, one step at a time, from 1 to beyond 96 tokens."""
    driver = BackendDriver(backend, SHAPES["plain"], 1)
    driver.enter(4)
    driver.enter(1)
    driver.run({4: 1, 1: 62})
    for _ in range(96):
        driver.run({4: 1, 1: 1})


@pytest.mark.parametrize(
    "shape", ["sinks in a window", "chunks", "all at once", "indexed", "spans in a window"]
)
def test_long_prompts_are_done_in_pieces(shape, monkeypatch):
    """Small enough pieces that each sees only a part of the keys."""
    monkeypatch.setattr(pieces, "MAX_MASK_ELEMENTS", 2000)
    driver = BackendDriver("sdpa", SHAPES[shape], 4)
    for row in range(3):
        driver.enter(row)
    driver.run({0: 120, 1: 50, 2: 50})
    driver.run({0: 30, 1: 1, 2: 90})


class OfTheFirstDays(AttentionBackend):
    """A backend of a third party, written before there were chunks and sinks."""

    name = "old"

    def allocate(self, num_blocks, block_size):
        return {}

    def plan(self, batch):
        return None

    def forward(self, layer, query, key, value, plan, both=None):
        return query


class Changed(SdpaBackend):
    """Reads K/V differently, without declaring its features."""

    name = "changed"


@pytest.mark.parametrize("backend", [OfTheFirstDays, Changed])
def test_what_a_backend_does_not_say_it_knows_is_refused(backend):
    def reason(backend, **more):
        spec = LayerSpec(
            name="layers.3", index=3, num_heads=2, num_kv_heads=2, key_size=4, value_size=4, scaling=1.0, **more
        )  # fmt: skip
        return refusal_of(backend, [spec], torch.float32, torch.device("cpu"))

    assert reason(backend) is None
    assert reason(backend, window=5, softcap=2.0) is None
    assert "layers.3 needs attention sinks" in reason(backend, sinks=True)
    assert "layers.3 needs a choice of keys" in reason(backend, indexed=True)
    assert "layers.3 needs attention within chunks" in reason(backend, chunk=8)
    assert "layers.3 needs queries that see later keys" in reason(backend, spans=True)
    for known in BACKENDS.values():
        assert reason(known, sinks=True, chunk=8, indexed=True, spans=True) is None


def test_slabs_that_do_not_fit_are_done_without():
    """With no room for slabs the rows are gathered; with room for some, some."""
    for budget in (0, 40_000):
        driver = BackendDriver("cpu", SHAPES["plain"], 5)
        driver.backend.slabs.budget_bytes = budget
        schedule(driver, 25)
        assert driver.backend.slabs.used_bytes <= budget


@pytest.mark.nightly_after(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept", STORAGES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.slow
def test_nan_that_a_row_left_behind_does_not_count(backend, kept, dtype):
    """NaN in a masked key times a weight of zero is NaN."""
    shape = {"num_heads": 8, "num_kv_heads": 4, "key_size": 32, "value_size": 32}
    driver = BackendDriver(backend, shape, 2, dtype, kept)
    for row in range(ROWS):
        driver.enter(row)
    driver.run({row: 88 + row for row in range(ROWS)})
    driver.run(dict.fromkeys(range(ROWS), 1))
    for layer in driver.layers:
        leave_behind(layer.kv_cache[0])
    if backend == "cpu":
        for slab in driver.backend.slabs._slabs.values():
            for tensor in slab.tensors:
                tensor.fill_(float("nan"))
    for row in range(ROWS):
        driver.leave(row)
    for row in range(ROWS):
        driver.enter(row)
    driver.run({row: 66 + row for row in range(ROWS)})
    for _ in range(BLOCK):
        driver.run(dict.fromkeys(range(ROWS), 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("softcap", [0.0, 30.0])
def test_scores_beyond_the_range_of_16_bits_are_scaled_in_time(dtype, softcap):
    """Qwen 2 has such keys; the fused kernel adds up in 32 bits, so a row would fail only in large batches."""
    from tenonry_torch_base.attention.math import scored_attention
    from tenonry_worker_torch_cpu.attention.cpu import _products

    spec = LayerSpec(
        name="a",
        index=0,
        num_heads=4,
        num_kv_heads=2,
        key_size=64,
        value_size=64,
        scaling=0.125,
        softcap=softcap,
    )
    torch.manual_seed(0)
    query = 60 * torch.randn(3, 2, 2, 64).to(dtype)
    key, value = 60 * torch.randn(3, 2, 40, 64).to(dtype), torch.randn(3, 2, 40, 64).to(dtype)
    mask = torch.zeros(3, 1, 40, dtype=dtype)
    whole = [tensor.float() for tensor in (query, key, value)]
    assert (whole[0] @ whole[1].mT).abs().max() > torch.finfo(torch.float16).max
    wanted = (
        scored_attention(*whole, mask[:, None].float(), spec)
        if softcap
        else torch.nn.functional.scaled_dot_product_attention(*whole, scale=spec.scaling)
    )
    found = [_products(spec, query, key, value, mask)]
    if softcap:
        found.append(scored_attention(query, key, value, mask[:, None], spec))
    for out in found:
        torch.testing.assert_close(out.float(), wanted, atol=0.1, rtol=0.1)
