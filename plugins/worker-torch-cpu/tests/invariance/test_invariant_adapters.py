"""Adapters with batch invariance: the tokens of peft, and for every token the bits that it gets alone (WK-14)."""

from __future__ import annotations

import copy
import itertools

import lora_tools
import numpy as np
import pytest
import torch
import worker_driver
import worker_families
import worker_tools

from tenonry.sampling_params import SamplingParams
from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_testkit.tiers import nightly_unless
from tenonry_torch_base.step_kernels import Refusal
from tenonry_worker_torch.adapters.linear import LowRank, Part
from tenonry_worker_torch.invariance import NotInvariantError
from tenonry_worker_torch.step_kernels import FoundKernels
from tenonry_worker_torch_cpu.kernels.low_rank import LowRankKernels

pytestmark = [
    pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built"),
    pytest.mark.slow,  # whole models
]
RANKS = (1, 3, 4)
ROWS = ("a1", None, "a3", "a4", "a3", None, "a1")
LENGTHS = (5, 17, 9, 3, 12, 17, 30)
WAYS = {
    "together": {},
    "in chunks": {"budget": 7},
    "in another order": {"seed": 5},
    "preempted": {"budget": 11, "preempt_every": 4},
}
VOCAB = 96


class NoAdapters(CpuKernels):
    """Has kernels for batch invariance, and none for adapters."""

    def low_rank(self, parts):
        return Refusal("no adapters today")


def found(kernels=CpuKernels):
    return FoundKernels(kernels(), is_asked_for=True)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def module(request):
    return worker_families.build(request.param)


@pytest.fixture(scope="module")
def peft(module, tmp_path_factory):
    return lora_tools.Peft(module, tmp_path_factory.mktemp("adapters"), ranks=RANKS)


def made_runner(module, peft, max_loras, dtype=torch.float32, names=("a1", "a3", "a4")):
    own = copy.deepcopy(module).to(dtype)
    runner = lora_tools.runner(own, max_loras=max_loras, kernels=found(), invariant=True)
    for name in names:
        runner.model.adapters.add(name, peft.path(name))
    return runner


def asked(runner, number, handle):
    """Greedy, with the log-probabilities of all tokens."""
    name = ROWS[number]
    request = worker_driver.Request(
        handle,
        worker_tools.prompts(LENGTHS)[number],
        SamplingParams(
            temperature=0.0, max_tokens=lora_tools.NUM_TOKENS, ignore_eos=True, logprobs=64
        ),
        max_tokens=lora_tools.NUM_TOKENS,
    )
    request.adapter = None if name is None else lora_tools.loaded(runner.model.adapters, name)
    return request


def served(runner, numbers, **way):
    requests = [asked(runner, number, handle) for handle, number in enumerate(numbers, 1)]
    sizes = {"max_num_seqs": 12, "num_blocks": 160, "block_size": 4} | way
    worker_driver.Driver(runner.answer, **sizes).run(requests)
    return [(request.output, bits_of(request)) for request in requests]


def bits_of(request):
    found = []
    for ids, logprobs, _ in request.logprobs:
        by_token = np.zeros(VOCAB, np.float32)
        by_token[ids] = logprobs
        found.append(by_token.tobytes())
    return found


def test_tokens_are_those_of_peft(module, peft):
    runner = made_runner(module, peft, max_loras=3)
    prompts = worker_tools.prompts(LENGTHS)
    wanted = [peft.generate(name, prompt) for name, prompt in zip(ROWS, prompts, strict=True)]
    assert [output for output, _ in served(runner, range(len(ROWS)))] == wanted


@pytest.mark.parametrize(
    ("way", "dtype"),
    nightly_unless(
        lambda way, dtype: dtype == torch.float32 or way == "preempted",
        itertools.product(WAYS, [torch.float32, torch.bfloat16]),
    ),
)
@pytest.mark.nightly_after(4)
def test_bits_are_those_that_a_request_gets_alone(module, peft, dtype, way):
    """Also where its adapter is the only one that was ever loaded, in the only slot."""
    every = range(len(ROWS))
    together = served(made_runner(module, peft, 3, dtype), every, **WAYS[way])
    for number in every:
        names = () if ROWS[number] is None else (ROWS[number],)
        (alone,) = served(made_runner(module, peft, 1, dtype, names), [number])
        assert together[number] == alone


def test_what_has_no_kernel_for_adapters_is_refused():
    layer = LowRank([Part("a", 0, 24)], 4, torch.float32, torch.device("cpu"))
    with pytest.raises(NotInvariantError, match=r"'cpu'.* have none for adapters"):
        LowRankKernels(found(NoAdapters), 8, is_required=True).give(layer, 32)
