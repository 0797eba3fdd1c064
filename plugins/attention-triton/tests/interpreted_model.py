"""A tiny model through the worker with the backends `triton` and `sdpa`: prints a JSON object, backend → tokens."""

from __future__ import annotations

import json

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_attention_triton.backend import TritonBackend
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.buffers import HostBuffers
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.runner.assemble import assemble_runner

CPU = torch.device("cpu")
LENGTHS = (5, 17, 1)
BLOCKS, STEPS = 3, 5  # blocks per row


def step_of(number, num_tokens, new=()):
    rows = np.arange(len(LENGTHS), dtype=np.int32)
    return SchedulerOutput(
        step_id=number, new=list(new), row=rows, num_tokens=np.array(num_tokens, np.int32),
        next_token=np.full(len(rows), -1, np.int32), samples=np.ones(len(rows), np.bool_),
    )  # fmt: skip


def tokens(backend):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval().requires_grad_(False)
    model = build(
        module,
        BuildPlan(backend, HostBuffers(CPU, 1), max_model_len=48, fuse=True, skip_check=False),
    )
    runner = assemble_runner(
        model, max_num_seqs=4, max_model_len=48, num_blocks=4 * BLOCKS, block_size=16
    )
    random = np.random.default_rng(1)
    new = [
        NewRow(
            row=row, handle=row + 1, token_ids=random.integers(3, 96, length).astype(np.int32), num_computed=0,
            num_output=0, block_ids=(np.arange(row * BLOCKS, (row + 1) * BLOCKS, dtype=np.int32),),
            sampling=SamplingParams(temperature=0.0),
        )
        for row, length in enumerate(LENGTHS)
    ]  # fmt: skip
    steps = [
        step_of(0, LENGTHS, new),
        *(step_of(number, [1] * len(LENGTHS)) for number in range(1, STEPS)),
    ]
    return [runner.answer(step).result().token_ids.tolist() for step in steps]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"triton": tokens(TritonBackend), "sdpa": tokens(SdpaBackend)}))
