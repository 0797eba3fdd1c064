"""The conformance suite of attention backends, against attention written out by hand. Test process.

from tenonry_testkit.attention_backend import AttentionBackendContract

class TestMine(AttentionBackendContract):
    attention_backend = "my_package:MyBackend"

Rows enter, grow, leave and return; prompts are computed in chunks; blocks are scattered, with NaN in unwritten slots.
Install `tenonry-testkit[torch]`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tenonry_testkit.targets import resolve_target
from tenonry_torch_base.attention.base import (
    AttentionBackend,
    AttentionBatch,
    LayerSpec,
    refusal_of,
)
from tenonry_torch_base.attention.layer import AttentionLayer, StepPlan
from tenonry_torch_base.buffers import HostBuffers
from tenonry_torch_base.points import ATTENTION_BACKENDS

ROWS, LENGTH, BLOCKS, LAYERS = 5, 64, 60, 2
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"num_heads": 4, "num_kv_heads": 2},
    "window": {"num_heads": 2, "num_kv_heads": 2, "window": 9},
    "softcap": {"num_heads": 3, "num_kv_heads": 1, "softcap": 2.0},
    "chunks": {"num_heads": 4, "num_kv_heads": 2, "chunk": 13},
}


class Rows:
    """Rows of a backend, with a plain copy of the K/V written by each."""

    def __init__(self, backend: AttentionBackend, block_size: int, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.backend, self.block = backend, block_size
        self.step = StepPlan(backend)
        self.layers = [AttentionLayer(spec, self.step) for spec in backend.layers]
        caches = backend.allocate(BLOCKS * 4 // block_size + 8, block_size)
        for layer in self.layers:
            cache = caches[layer.spec.name]
            cache.key.fill_(torch.nan)
            cache.value.fill_(torch.nan)
            layer.kv_cache = [cache]
        self.free = self.random.permutation(np.arange(1, BLOCKS * 4 // block_size + 8)).tolist()
        self.table = np.zeros((ROWS, LENGTH // block_size + 2), np.int32)
        self.generation = np.zeros(ROWS, np.int64)
        self.written: dict[int, list[list[torch.Tensor]]] = {}
        self.blocks: dict[int, list[int]] = {}

    def enter(self, row: int) -> None:
        """Add a row."""
        self.generation[row] += 1
        self.blocks[row] = []
        self.written[row] = [[] for _ in range(2 * LAYERS)]

    def leave(self, row: int) -> None:
        """Remove a row; other rows reuse its blocks."""
        self.free += self.blocks.pop(row)
        del self.written[row]
        self.backend.release(np.array([row], np.int32))

    def length(self, row: int) -> int:
        """Number of tokens of a row."""
        return sum(map(len, self.written[row][0]))

    def run(self, counts: dict[int, int], *, pruned: bool = False) -> None:
        """Run one step of `counts` tokens per row; `pruned`: the last layer has a query for the last token of each row
        only.
        """
        rows = np.array(list(counts), np.int32)
        num = np.array(list(counts.values()), np.int32)
        start = np.array([self.length(row) for row in counts], np.int32)
        slots = np.concatenate([self._slots(row, count) for row, count in counts.items()])
        plan = self.backend.plan(self._batch(rows, num, start, slots))
        for number, layer in enumerate(self.layers):
            last = pruned and number == LAYERS - 1
            self.step.plan = plan
            if last:
                ones = np.ones_like(num)
                batch = self._batch(rows, ones, start + num - 1, slots, plan)
                self.step.plan = self.backend.plan(batch)
            self._layer(layer, number, counts, start, last=last)

    def _slots(self, row: int, count: int) -> NDArray[np.int64]:
        end = self.length(row) + count
        while len(self.blocks[row]) * self.block < end:
            self.blocks[row].append(self.free.pop())
            self.table[row, len(self.blocks[row]) - 1] = self.blocks[row][-1]
        at = np.arange(self.length(row), end)
        return self.table[row, at // self.block].astype(np.int64) * self.block + at % self.block

    def _batch(
        self, rows: Any, num: Any, start: Any, slots: Any, full_plan: Any = None
    ) -> AttentionBatch:
        put = HostBuffers(torch.device("cpu"), 1).put
        return AttentionBatch(
            row=rows,
            num_tokens=num,
            start=start,
            seq_lens=start + num,
            block_table=self.table,
            slot_mapping=slots,
            generation=self.generation[rows].copy(),
            put=put,
            full_plan=full_plan,
        )

    def _layer(
        self, layer: AttentionLayer, number: int, counts: dict[int, int], start: Any, *, last: bool
    ) -> None:
        spec, total = layer.spec, sum(counts.values())
        asked = [[count - 1] if last else [*range(count)] for count in counts.values()]
        query = self._draw(sum(map(len, asked)), spec.num_heads, spec.key_size)
        key = self._draw(total, spec.num_kv_heads, spec.key_size)
        value = self._draw(total, spec.num_kv_heads, spec.value_size)
        found = layer(query.clone(), key.clone(), value.clone())
        assert found.shape == (len(query), spec.num_heads, spec.value_size)
        places = np.cumsum([0, *map(len, asked)])
        ends = np.cumsum([0, *counts.values()])
        for place, row in enumerate(counts):
            keys, values = self.written[row][2 * number : 2 * number + 2]
            keys.append(key[ends[place] : ends[place + 1]])
            values.append(value[ends[place] : ends[place + 1]])
            mine = slice(places[place], places[place + 1])
            at = torch.tensor(asked[place]) + int(start[place])
            wanted = attention(spec, query[mine], torch.cat(keys), torch.cat(values), at)
            torch.testing.assert_close(found[mine], wanted, rtol=1e-4, atol=1e-4)

    def _draw(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.random.standard_normal(shape).astype(np.float32))


def attention(
    spec: LayerSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, at: torch.Tensor
) -> torch.Tensor:
    """Attend from the positions `at` to all keys of their row: [Q, H, D], [L, K, D], [L, K, V] → [Q, H, V]."""
    places = torch.arange(len(key))
    seen = places <= at[:, None]
    if spec.window:
        seen &= places > at[:, None] - spec.window
    if spec.chunk:
        seen &= places >= (at - at % spec.chunk)[:, None]
    shared = torch.arange(spec.num_heads) // spec.group_size
    scores = torch.einsum("qhd,lhd->qhl", query, key[:, shared]) * spec.scaling
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    weights = torch.softmax(scores.masked_fill(~seen[:, None], -torch.inf), -1)
    return torch.einsum("qhl,lhv->qhv", weights, value[:, shared])


class AttentionBackendContract:
    """Subclass in a test module and name the `attention_backend`. Layers that it rejects are skipped, except plain
    ones.
    """

    attention_backend: ClassVar[str | type[AttentionBackend] | None] = None

    # ------------------------------------------------------------------ tools, for tests of your own
    def build(self, shape: str = "plain") -> AttentionBackend | None:
        """Build a fresh backend of two layers; None if it rejects them."""
        target: Any = self.attention_backend
        cls, _, _ = resolve_target(ATTENTION_BACKENDS, target)
        sizes = {"key_size": 8, "value_size": 8} | SHAPES[shape]
        specs = [LayerSpec(name=f"layer.{i}", index=i, scaling=0.4, **sizes) for i in range(LAYERS)]
        cpu = torch.device("cpu")
        reason = refusal_of(cls, specs, torch.float32, cpu)
        if reason is not None:
            assert shape != "plain", f"it refuses plain layers: {reason}"
            return None
        made: AttentionBackend = cls(specs, torch.float32, cpu)
        return made

    def rows(self, shape: str, seed: int = 0) -> Rows:
        """Rows of a fresh backend; skips rejected shapes."""
        made = self.build(shape)
        if made is None:
            pytest.skip(f"it refuses layers of the shape '{shape}'")
        sizes = type(made).block_sizes()
        return Rows(made, sizes[0] if sizes else 4, seed)

    # ------------------------------------------------------------------ the contract
    def test_it_has_a_name_and_a_version(self) -> None:
        """It resolves, declares both, and rejects layers with a reason."""
        made = self.build()
        assert isinstance(made, AttentionBackend)
        assert made.name
        assert made.interface_version == 1

    def test_every_layer_has_a_cache(self) -> None:
        """`allocate` returns one entry per layer by name, and layers share no memory."""
        made = self.build()
        assert made is not None
        sizes = type(made).block_sizes()
        caches = made.allocate(9, sizes[0] if sizes else 4)
        assert set(caches) == {spec.name for spec in made.layers}
        first, second = (caches[spec.name] for spec in made.layers)
        first.key.fill_(1.0)
        second.key.fill_(2.0)
        assert bool((first.key == 1.0).all()), "layers share memory"

    @pytest.mark.parametrize("shape", SHAPES)
    def test_a_prompt_attends_to_itself(self, shape: str) -> None:
        """Each token attends to itself and its predecessors, within the layer's window."""
        rows = self.rows(shape)
        for row, count in enumerate((1, 7, 30)):
            rows.enter(row)
            rows.run({row: count})

    @pytest.mark.parametrize("shape", SHAPES)
    def test_a_prompt_may_come_in_chunks(self, shape: str) -> None:
        """Later chunks attend to the K/V of earlier ones."""
        rows = self.rows(shape)
        rows.enter(0)
        for count in (5, 1, 16, 9):
            rows.run({0: count})

    @pytest.mark.parametrize("shape", SHAPES)
    def test_rows_decode_together(self, shape: str) -> None:
        """Tokens of several rows attend to the K/V of their own row."""
        rows = self.rows(shape)
        for row, count in enumerate((3, 17, 1)):
            rows.enter(row)
            rows.run({row: count})
        for _ in range(6):
            rows.run({2: 1, 0: 1, 1: 1})

    @pytest.mark.parametrize("shape", SHAPES)
    def test_steps_mix_prompts_and_decoding(self, shape: str) -> None:
        """Rows come in any order and may pause."""
        rows = self.rows(shape)
        for row in range(4):
            rows.enter(row)
        rows.run({0: 12, 1: 4})
        rows.run({3: 9, 1: 1, 0: 1})
        rows.run({2: 20, 0: 1})
        rows.run({1: 3, 3: 1, 2: 1, 0: 1})

    @pytest.mark.parametrize("shape", SHAPES)
    def test_rows_are_used_again(self, shape: str) -> None:
        """A new row is unaffected by its predecessor, whose blocks other rows have overwritten."""
        rows = self.rows(shape)
        for turn in range(3):
            for row in range(3):
                rows.enter(row)
                rows.run({row: 6 + 5 * turn + row})
            rows.run({0: 1, 1: 1, 2: 1})
            for row in range(3):
                rows.leave(row)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_the_last_layer_may_have_fewer_queries(self, shape: str) -> None:
        """All K/V of the step is written, and the last token of each row attends."""
        rows = self.rows(shape)
        rows.enter(0)
        rows.enter(1)
        rows.run({0: 11, 1: 5}, pruned=True)
        rows.run({1: 1, 0: 7}, pruned=True)
        rows.run({0: 1, 1: 1})
