"""Shortcuts of the tests: prompts, reference tokens, a model runner over a module, a worker context over a folder."""

from __future__ import annotations

import functools
import random

import torch
import worker_families
from worker_driver import Driver, Request

from tenonry.config import EngineConfig
from tenonry.info import ModelInfo
from tenonry.interfaces.worker import WorkerContext
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.buffers import HostBuffers
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.options import TorchOptions
from tenonry_worker_torch.runner.assemble import assemble_runner
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend
from tenonry_worker_torch_cpu.attention.invariant import InvariantBackend

BACKENDS = {"sdpa": SdpaBackend, "cpu": CpuBackend, "invariant": InvariantBackend}
PROMPT_LENGTHS = (5, 17, 1, 33, 9, 26)
OUTPUT_LENGTH = 12
SERVED_BLOCKS = 512
LOST = 0.5  # in bfloat16, layers with large weights round much; a wrong token is 2 or more below the best


def prompts(lengths=PROMPT_LENGTHS, seed=0, vocab_size=96):
    rng = random.Random(seed)
    return [[rng.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


@functools.cache
def generated(family):
    """Answers of transformers' generate to the prompts, one at a time, greedily, in float32."""
    model = worker_families.build(family)
    return [greedy(model, prompt) for prompt in prompts()]


def greedy(model, prompt):
    return model.generate(
        torch.tensor([prompt]),
        max_new_tokens=OUTPUT_LENGTH,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(prompt) :].tolist()


def loaded(
    module,
    *,
    backend="cpu",
    fuse=True,
    max_model_len=64,
    skip_check=False,
    kernels=None,
    invariant=False,
    kv_cache_dtype="auto",
):
    buffers = HostBuffers(torch.device("cpu"), 1)
    return build(
        module,
        BuildPlan(
            BACKENDS[backend],
            buffers,
            max_model_len=max_model_len,
            fuse=fuse,
            skip_check=skip_check,
            kernels=kernels,
            invariant=invariant,
            kv_cache_dtype=kv_cache_dtype,
        ),
    )


def runner(model, *, max_num_seqs=6, max_model_len=64, num_blocks=96, block_size=4, **options):
    return assemble_runner(
        model, max_num_seqs=max_num_seqs, max_model_len=max_model_len, num_blocks=num_blocks, block_size=block_size,
        **options,
    )  # fmt: skip


def context(folder, *, max_model_len=64, options=None, **config):
    info = ModelInfo(
        name="test",
        path=str(folder),
        architecture="Test",
        max_model_len=max_model_len,
        vocab_size=96,
    )
    config = EngineConfig(model=str(folder), **({"max_num_seqs": 8, "device": "cpu"} | config))
    return WorkerContext(
        config, info, max_model_len=max_model_len, options=options or TorchOptions()
    )


def serve(model, **way):
    """The requests of all prompts, served greedily; `way`: as `Driver` takes it."""
    served = runner(model, num_blocks=SERVED_BLOCKS)
    driver = Driver(served.answer, max_num_seqs=6, num_blocks=SERVED_BLOCKS, block_size=4, **way)
    requests = [
        Request(number + 1, prompt, max_tokens=OUTPUT_LENGTH)
        for number, prompt in enumerate(prompts())
    ]
    return driver.run(requests)


def lost(reference, request):
    """Largest distance between a request's token and the best logit, in shares of the logits' spread."""
    tokens = request.prompt + request.output
    with torch.inference_mode():
        logits = reference(torch.tensor([tokens])).logits[0].float()
    of_tokens = logits[len(request.prompt) - 1 : -1]
    chosen = of_tokens.gather(1, torch.tensor(request.output)[:, None])[:, 0]
    best = of_tokens.amax(1)
    return float(((best - chosen) / of_tokens.std(1)).max())
