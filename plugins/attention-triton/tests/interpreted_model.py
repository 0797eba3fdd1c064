"""A tiny model through the worker: prints a JSON object, how it is computed → its tokens; "launches": those of one more
layer in a decoding step, with the model pass `triton-layers`, by the name of the weights.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from transformers import Qwen3Config, Qwen3ForCausalLM
from triton.runtime import interpreter

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_attention_triton.backend import TritonBackend
from tenonry_quantisations.int4 import Int4
from tenonry_quantisations.int8 import Int8
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.buffers import HostBuffers
from tenonry_torch_base.quantisations import QuantisedWeight
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.points import DEVICE_PASSES, TRITON
from tenonry_worker_torch.runner.assemble import assemble_runner

CPU = torch.device("cpu")
LENGTHS = (5, 17, 1, 2, 1, 1, 1, 1)
BLOCKS, STEPS = 3, 3  # blocks per row
NO_KERNELS = {
    "view", "_unsafe_view", "slice", "select", "unsqueeze", "transpose", "t", "narrow", "split", "expand", "alias",
    "detach", "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "split_with_sizes", "flatten",
    "lift_fresh",
}  # fmt: skip


class Fp8(Int8):
    """Rounds weights to fp8 with a scale per output, as some checkpoints have them. Random weights lose much."""

    name = "fp8"
    tolerance = 0.4

    def quantise(self, weight):
        scales = weight.float().abs().amax(1, keepdim=True) / 448
        values = (weight / scales).to(torch.float8_e4m3fn)
        return QuantisedWeight(bits=8, values=values, scales=scales)


class Launches(TorchDispatchMode):
    """Counts operations that start a kernel on a device, those of Triton included."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.name().partition("::")[2].partition(".")[0] not in NO_KERNELS
        return func(*args, **(kwargs or {}))

    def __enter__(self):
        self._call = call = interpreter.GridExecutor.__call__

        def counted(executor, *args, **kwargs):
            self.count += 1
            with _disable_current_modes():
                return call(executor, *args, **kwargs)

        interpreter.GridExecutor.__call__ = counted
        return super().__enter__()

    def __exit__(self, *error):
        interpreter.GridExecutor.__call__ = self._call
        return super().__exit__(*error)


def step_of(number, num_tokens, new=()):
    rows = np.arange(len(LENGTHS), dtype=np.int32)
    return SchedulerOutput(
        step_id=number, new=list(new), row=rows, num_tokens=np.array(num_tokens, np.int32),
        next_token=np.full(len(rows), -1, np.int32), samples=np.ones(len(rows), np.bool_),
    )  # fmt: skip


def runner_of(backend, num_layers, skip_check, kept, quantisation=None):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=num_layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    module = Qwen3ForCausalLM(config).eval().requires_grad_(False)
    model = build(
        module,
        BuildPlan(
            backend,
            HostBuffers(CPU, 1),
            max_model_len=48,
            fuse=True,
            skip_check=skip_check,
            kv_cache_dtype=kept,
            quantisation=quantisation,
        ),
    )
    runner = assemble_runner(
        model, max_num_seqs=len(LENGTHS), max_model_len=48, num_blocks=len(LENGTHS) * BLOCKS, block_size=16
    )  # fmt: skip
    return runner, model


def tokens(
    backend, num_layers=1, num_steps=STEPS, *, skip_check=False, kept="auto", quantisation=None
):
    """Tokens of all steps, launches of the last one, and the model."""
    runner, model = runner_of(backend, num_layers, skip_check, kept, quantisation)
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
        *(step_of(number, [1] * len(LENGTHS)) for number in range(1, num_steps)),
    ]
    found = [runner.answer(step).result().token_ids.tolist() for step in steps]
    with Launches() as counted:
        found.append(
            runner.answer(step_of(num_steps, [1] * len(LENGTHS))).result().token_ids.tolist()
        )
    return found, counted.count, model


def with_layers():
    DEVICE_PASSES["cpu"] = {"triton-matrices": TRITON, "triton-layers": TRITON}
    found, few, model = tokens(TritonBackend)
    assert "triton-layers" in model.passes.used, model.passes.table
    several = tokens(TritonBackend, 2, 1, skip_check=True)[1]
    launches = {"floats": several - few}
    for kind in (Int4, Int8, Fp8):
        one, two = (
            tokens(TritonBackend, layers, 1, skip_check=True, quantisation=kind(None))[1]
            for layers in (1, 2)
        )
        launches[kind.name] = two - one
    return found, launches, tokens(TritonBackend, skip_check=True, kept="int8")[0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    said = {"triton": tokens(TritonBackend)[0], "sdpa": tokens(SdpaBackend)[0]}
    said["sdpa int8"] = tokens(SdpaBackend, skip_check=True, kept="int8")[0]
    said["triton-layers"], said["launches"], said["triton-layers int8"] = with_layers()
    print(json.dumps(said))
