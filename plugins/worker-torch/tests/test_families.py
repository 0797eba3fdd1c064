"""Greedy tokens equal transformers' generate in float32, whatever the batch looks like."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry_testkit.tiers import nightly_unless

pytestmark = pytest.mark.slow  # whole models

FUSED = {
    "llama",
    "llama-biased",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
}
WAYS = {
    "one big batch": {},
    "chunked prefill": {"budget": 7},
    "two steps in flight": {"depth": 2},
    "three steps in flight": {"depth": 3, "budget": 20},
    "preempted": {"budget": 11, "depth": 2, "preempt_every": 5},
}


# One family of each kind of attention is served in every way, the usual ones in the way that combines the most.
EVERY_WAY = {"llama", "gemma2", "deepseek_v3"}


def cases_of(*ways):
    """Pairs of a family and a way; most are nightly."""
    return nightly_unless(
        lambda family, way: (
            family in EVERY_WAY
            or (family in worker_families.USUAL and way == "preempted" and len(ways) > 2)
        ),
        itertools.product(worker_families.FAMILIES, ways),
    )


@functools.cache
def model_of(family, backend, fuse):
    return worker_tools.loaded(worker_families.build(family), backend=backend, fuse=fuse)


def serve(model, **way):
    runner = worker_tools.runner(model)
    driver = Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4, **way)
    requests = [
        Request(number + 1, prompt, max_tokens=worker_tools.OUTPUT_LENGTH)
        for number, prompt in enumerate(worker_tools.prompts())
    ]
    return [request.output for request in driver.run(requests)]


@pytest.mark.parametrize(("family", "way"), cases_of(*WAYS))
def test_tokens_equal_generate(family, way):
    assert serve(model_of(family, "cpu", True), **WAYS[way]) == worker_tools.generated(family)


@pytest.mark.parametrize(("family", "way"), cases_of("one big batch", "preempted"))
def test_tokens_equal_generate_on_the_reference_backend_without_fusion(family, way):
    assert serve(model_of(family, "sdpa", False), **WAYS[way]) == worker_tools.generated(family)


@pytest.mark.parametrize("family", worker_families.FAMILIES)
def test_fused_layers_run_for_supported_families(family):
    forward = model_of(family, "cpu", True).forward
    assert (type(forward).__name__ == "FusedForward") == (family in FUSED)


@pytest.mark.nightly_after(6)
@pytest.mark.parametrize(
    "family",
    nightly_unless(
        lambda family: family in worker_families.USUAL | FUSED,
        sorted(worker_families.FAMILIES.keys() - {"hrm_text"}),
    ),
)
def test_bfloat16_logits_are_close_to_the_models_own(family):
    """Everything that is done for speed in 16 bits, prepacked weights included, stays within rounding. (Random layers
    that are run over and over, as in HRM, round to other logits with the model's own code, too.)
    """
    module = worker_families.build(family, dtype=torch.bfloat16)
    reference = worker_families.build(family, dtype=torch.bfloat16)
    runner = worker_tools.runner(worker_tools.loaded(module))
    seen = []
    runner.forward_pass.forward = _Recorder(runner.forward_pass.forward, seen)
    prompt = worker_tools.prompts()[3]
    Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4).run(
        [Request(1, prompt, max_tokens=6)]
    )
    tokens = prompt + [int(logits[0].argmax()) for logits in seen[:-1]]
    with torch.inference_mode():
        wanted = reference(torch.tensor([tokens])).logits[0, len(prompt) - 1 :].float()
    got = torch.cat(seen).float()
    assert float((got - wanted).norm() / wanted.norm()) < 0.06


class _Recorder:
    def __init__(self, forward, seen):
        self.forward, self.seen, self.can_prune = forward, seen, forward.can_prune

    def __call__(self, *arguments):
        self.seen.append(self.forward(*arguments).clone())
        return self.seen[-1]
