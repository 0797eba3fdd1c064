"""A worker's steps through the buffers `cuda`: the same tokens as without them, and on CUDA not one wait in a step."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.buffers import HostBuffers
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.runner.assemble import assemble_runner
from tenonry_worker_torch_cuda import CudaBuffers

LENGTHS = (5, 17, 1, 9)
BLOCK_SIZE, BLOCKS = 4, 12  # per row
STEPS = 10


def runner(device, buffers):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2,
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval().requires_grad_(False).to(device)
    model = build(
        module, BuildPlan(SdpaBackend, buffers, max_model_len=64, fuse=True, skip_check=False)
    )
    return assemble_runner(
        model, max_num_seqs=4, max_model_len=64, num_blocks=4 * BLOCKS, block_size=BLOCK_SIZE
    )


def prompts():
    rng = np.random.default_rng(1)
    return [rng.integers(3, 96, length).astype(np.int32) for length in LENGTHS]


def prefill():
    """All prompts in one step, each row with the blocks that it will ever need."""
    new = [
        NewRow(
            row=row, handle=row + 1, token_ids=prompt, num_computed=0, num_output=0,
            block_ids=(np.arange(row * BLOCKS, (row + 1) * BLOCKS, dtype=np.int32),),
            sampling=SamplingParams(temperature=0.0),
        )
        for row, prompt in enumerate(prompts())
    ]  # fmt: skip
    return step_of(0, LENGTHS, new)


def decode(number):
    """One more token for every row, from the token that it sampled last."""
    return step_of(number, [1] * len(LENGTHS))


def step_of(number, num_tokens, new=()):
    rows = np.arange(len(LENGTHS), dtype=np.int32)
    return SchedulerOutput(
        step_id=number, new=list(new), row=rows, num_tokens=np.array(num_tokens, np.int32),
        next_token=np.full(len(rows), -1, np.int32), samples=np.ones(len(rows), np.bool_),
    )  # fmt: skip


def tokens(runner, depth):
    """Sampled tokens [STEPS, rows], with `depth` steps in flight."""
    flying, found = [], []
    for number in range(STEPS):
        flying.append(runner.answer(decode(number) if number else prefill()))
        if len(flying) == depth:
            found.append(flying.pop(0).result().token_ids.tolist())
    return found + [one.result().token_ids.tolist() for one in flying]


@pytest.fixture(scope="module")
def wanted():
    cpu = torch.device("cpu")
    return tokens(runner(cpu, HostBuffers(cpu, 1)), 1)


@pytest.mark.parametrize(
    ("device", "depth"),
    [("cpu", 1), ("cpu", 2), *[pytest.param("cuda", d, marks=pytest.mark.gpu) for d in (1, 2)]],
)
def test_tokens_are_those_of_the_built_in_buffers(device, depth, wanted):
    device = torch.device(device)
    assert tokens(runner(device, CudaBuffers(device, depth)), depth) == wanted
    assert len({tuple(step) for step in wanted}) > 1


@contextlib.contextmanager
def no_waiting():
    """CUDA itself raises at any call that waits for the device."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_steady_decode_step_waits_for_nothing():
    """Two steps in flight, launched and answered."""
    device = torch.device("cuda")
    mine = runner(device, CudaBuffers(device, 2))
    for number in range(3):  # the allocator and the libraries have what they need
        mine.execute(decode(number) if number else prefill()).result()
    with no_waiting():
        flying = [mine.execute(decode(number)) for number in (3, 4)]
        assert [len(one.result().token_ids) for one in flying] == [4, 4]


@pytest.mark.gpu
def test_the_built_in_buffers_do_wait():
    """The test above fails for copies from pageable memory."""
    device = torch.device("cuda")
    mine = runner(device, HostBuffers(device, 2))
    mine.execute(prefill()).result()
    with no_waiting(), pytest.raises(RuntimeError, match="synchronizing"):
        mine.execute(decode(1))
