"""Steps of the backend in Triton's interpreter against float64: prints a JSON object, case → relative error.

A program, not a module: the interpreter is chosen before Triton is imported. Slots that a row has not written are NaN.
"""

from __future__ import annotations

import json
import sys
import zlib

import numpy as np
import torch
from cases import CASES

from tenonry_attention_triton.backend import TritonBackend
from tenonry_torch_base.attention.base import AttentionBatch, DecodeRows, LayerSpec
from tenonry_torch_base.attention.kv_storage import STORAGES

CPU = torch.device("cpu")


class Layer:
    chosen = None

    def __init__(self, spec, cache, sinks):
        self.spec = spec
        self.kv_cache = [cache]
        self.sinks = sinks


def attended(query, key, value, count, spec, sinks):
    """`query` [count, heads, D]: last tokens of a row with `key` and `value` [length, heads, size]; in float64."""
    length = len(key)
    group = spec.num_heads // spec.num_kv_heads
    key = key.double().repeat_interleave(group, 1)
    value = value.double().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,lhd->hql", query.double(), key) * spec.scaling
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    position = torch.arange(length - count, length)[:, None]
    keys = torch.arange(length)[None]
    hidden = keys > position
    if spec.window:
        hidden |= keys <= position - spec.window
    if spec.chunk:
        hidden |= keys < position // spec.chunk * spec.chunk
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(-1, count, 1)
        scores = torch.cat([scores, column], -1)
        return torch.einsum("hql,lhd->qhd", scores.softmax(-1)[..., :-1], value)
    return torch.einsum("hql,lhd->qhd", scores.softmax(-1), value)


class Step:
    """Rows of `lengths` tokens, of which the last `counts` are new, in blocks of random order."""

    def __init__(self, case, random):
        self.size = case.get("block_size", 16)
        self.lengths = np.array(case["lengths"], np.int32)
        self.counts = np.array(case.get("counts", [1] * len(self.lengths)), np.int32)
        width = -(-int(self.lengths.max()) // self.size)
        self.num_blocks = len(self.lengths) * width + 3
        self.dummy = self.num_blocks - 1  # of no row
        order = random.permutation(self.dummy)[: len(self.lengths) * width]
        rows = len(self.lengths)
        self.table = np.zeros((rows + 2, width), np.int32)
        self.rows = random.permutation(rows + 2)[:rows].astype(np.int32)
        self.table[self.rows] = order.reshape(rows, width)

    def slots(self, place, begin, end):
        positions = np.arange(begin, end)
        blocks = self.table[self.rows[place], positions // self.size].astype(np.int64)
        return blocks * self.size + positions % self.size

    def new_slots(self):
        rows = zip(range(len(self.rows)), self.lengths, self.counts, strict=True)
        return np.concatenate([self.slots(place, end - count, end) for place, end, count in rows])

    def batch(self):
        return AttentionBatch(
            row=self.rows, num_tokens=self.counts, start=self.lengths - self.counts, seq_lens=self.lengths,
            block_table=self.table, slot_mapping=self.new_slots(), generation=np.zeros(len(self.rows), np.int64),
            put=lambda label, array: torch.from_numpy(np.array(array)),
        )  # fmt: skip


def check_repeated(backend, layer, step, given, wanted):
    """The plan of a graph, with one row of padding in a block of its own: the same bits for the others."""
    rows = len(step.rows)
    table = np.vstack(
        [step.table[step.rows], np.full((1, step.table.shape[1]), step.dummy, np.int32)]
    )
    slots = np.append(step.new_slots(), step.dummy * step.size)
    lengths = np.append(step.lengths, 1).astype(np.int32)
    plan = backend.decode_plan(DecodeRows(*map(torch.from_numpy, (table, lengths, slots))))
    padded = [torch.cat([each, each[:1]]) for each in given]
    out = backend.forward(layer, *padded, plan)[:rows]
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)


def seen(storage, vectors):
    return storage.unpacked(storage.packed(vectors), torch.empty_like(vectors))


def error_of(case):
    seed = zlib.crc32(json.dumps(case, sort_keys=True).encode())
    torch.manual_seed(seed)
    step = Step(case, np.random.default_rng(seed))
    heads, kv, size = case["shape"]
    value_size = case.get("value_size", size)
    dtype = getattr(torch, case.get("dtype", "float32"))
    fields = {name: case[name] for name in ("window", "chunk", "softcap", "sinks") if name in case}
    spec = LayerSpec(
        name="layer", index=0, num_heads=heads, num_kv_heads=kv, key_size=size, value_size=value_size,
        scaling=case.get("scaling", size**-0.5), **fields,
    )  # fmt: skip
    backend = TritonBackend([spec], dtype, CPU)
    storage = STORAGES[case.get("kept", "auto")](dtype)
    backend.keep_in(storage)
    cache = backend.allocate(step.num_blocks, step.size)["layer"]
    for tensor in (cache.key, cache.value):
        tensor.fill_(
            255 if tensor.dtype == torch.uint8 else float("nan")
        )  # NaN is the scale of octets 255
    lengths, counts = step.lengths.tolist(), step.counts.tolist()
    keys = [torch.randn(length, kv, size).to(dtype) for length in lengths]
    values = [torch.randn(length, kv, value_size).to(dtype) for length in lengths]
    wanted_cache = [cache.key.clone(), cache.value.clone()]
    for place, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        reach = spec.window or spec.chunk
        old = length - count
        # What no query sees any more may be another's.
        begin = 0 if not reach else int(spec.first_seen(np.array([old + 1]))[0])
        for tensors, end in (((cache.key, cache.value), old), (wanted_cache, length)):
            slots = step.slots(place, begin, end)
            for tensor, vectors in zip(tensors, (keys[place], values[place]), strict=True):
                kept = vectors[begin:end]
                if not storage.is_exact:
                    kept = storage.packed(kept)
                tensor[slots // step.size, :, slots % step.size] = kept
    query = torch.randn(sum(counts), heads, size).to(dtype)
    new = [
        torch.cat([each[len(each) - count :] for each, count in zip(many, counts, strict=True)])
        for many in (keys, values)
    ]
    sinks = torch.randn(heads) if spec.sinks else None
    if not storage.is_exact:  # attention sees vectors as they are kept
        keys, values = ([seen(storage, each) for each in many] for many in (keys, values))
    out = backend.forward(Layer(spec, cache, sinks), query, *new, backend.plan(step.batch()))
    wanted = torch.cat([
        attended(some, key, value, count, spec, sinks)
        for some, key, value, count in zip(query.split(counts), keys, values, counts, strict=True)
    ])  # fmt: skip
    for tensor, expected in zip((cache.key, cache.value), wanted_cache, strict=True):
        torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)
    if set(counts) == {1}:
        check_repeated(backend, Layer(spec, cache, sinks), step, (query, *new), out)
    return float((out.double() - wanted).norm() / wanted.norm())


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(
        json.dumps(
            {
                name: error_of(case)
                for name, case in CASES.items()
                if not sys.argv[1:] or name in sys.argv[1:]
            }
        )
    )
