"""Variants of kernels, each of which is compiled once: prints a JSON object, way → those that steps launch and the
start does not. In Triton's interpreter; the start is load, cache and warm-up.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from interpreted_model import CPU, Fp8, runner_of
from triton.runtime import interpreter

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_attention_triton.backend import TritonBackend
from tenonry_quantisations.int4 import Int4
from tenonry_worker_torch.points import DEVICE_PASSES, TRITON
from tenonry_worker_torch.start_runner import warm_up

ROWS = 8
BLOCKS = 3  # of a row
NUMBERS = (8, 3, 1, 7, 2)  # rows of decoding steps
PROMPTS = (1, 5, 40, 17, 2, 3, 9, 30)


class Variants:
    """`seen`: kernels with their constants, launched so far."""

    def __init__(self):
        self.seen = set()
        self._call = call = interpreter.GridExecutor.__call__

        def noted(executor, *args, **given):
            constants = sorted((name, value) for name, value in given.items() if name.isupper())
            self.seen.add((executor.fn.__name__, *constants))
            return call(executor, *args, **given)

        interpreter.GridExecutor.__call__ = noted


def prompts(count):
    random = np.random.default_rng(1)
    return [
        NewRow(
            row=row, handle=row + 2, token_ids=random.integers(3, 96, length).astype(np.int32), num_computed=0,
            num_output=0, block_ids=(np.arange(row * BLOCKS, (row + 1) * BLOCKS, dtype=np.int32),),
            sampling=SamplingParams(temperature=0.0),
        )
        for row, length in enumerate(PROMPTS[:count])
    ]  # fmt: skip


def step_of(number, counts, new=()):
    rows = np.arange(len(counts), dtype=np.int32)
    return SchedulerOutput(
        step_id=number, new=list(new), row=rows, num_tokens=np.array(counts, np.int32),
        next_token=np.full(len(rows), -1, np.int32), samples=np.ones(len(rows), np.bool_),
    )  # fmt: skip


def late(variants, quantisation=None):
    variants.seen.clear()
    runner, _ = runner_of(TritonBackend, 1, True, "auto", quantisation)
    warm_up(runner)
    known = set(variants.seen)
    steps = [step_of(3, PROMPTS, prompts(ROWS))]
    steps += [step_of(4 + number, [1] * rows) for number, rows in enumerate(NUMBERS)]
    for step in steps:
        runner.answer(step).result()
    assert len(known) > 5
    return sorted(map(str, variants.seen - known))


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert CPU.type == "cpu"
    names = ("triton-matrices", "triton-layers", "triton-truncation")
    DEVICE_PASSES["cpu"] = dict.fromkeys(names, TRITON)
    variants = Variants()
    found = {kind.name: late(variants, kind(None)) for kind in (Int4, Fp8)}
    print(json.dumps({"floats": late(variants), **found}))
