"""Adapters by a step kernel: the tokens of peft, if it is correct, and one batch while the same rows decode."""

from __future__ import annotations

import copy
import logging

import lora_tools
import pytest
import torch
import worker_driver
import worker_families
import worker_tools

from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_torch_base.low_rank import LowRankParts
from tenonry_torch_base.step_kernels import StepKernels, makes
from tenonry_worker_torch.adapters.batch import AdapterBatch
from tenonry_worker_torch.adapters.linear import LowRank, Part
from tenonry_worker_torch.step_kernels import FoundKernels
from tenonry_worker_torch_cpu.kernels.attention import KernelAttention
from tenonry_worker_torch_cpu.kernels.low_rank import LowRankKernels

pytestmark = pytest.mark.slow  # whole models

needs_library = pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built")
RANKS = (1, 3, 4)
ROWS = ("a1", None, "a3", "a4", "a3")
LENGTHS = (5, 17, 9, 3, 12)
NUM_BLOCKS = 512  # room for every row in a slab


class Wrong(StepKernels):
    """Adds half of the correct addend, in the second of several layers."""

    name = "wrong"

    @classmethod
    def refusal(cls):
        return None

    @makes(LowRankParts)
    def low_rank(self, parts):
        kernel = CpuKernels().make(parts)

        def half(x, out, tokens):
            before = out[:, parts.begins[-1] :].clone()
            kernel(x, out, tokens)
            out[:, parts.begins[-1] :].add_(before).mul_(0.5)

        return half


def found(kernels=CpuKernels):
    return FoundKernels(kernels(), is_asked_for=True)


@pytest.fixture(scope="module")
def module():
    return worker_families.build("llama")


@pytest.fixture(scope="module")
def peft(module, tmp_path_factory):
    return lora_tools.Peft(module, tmp_path_factory.mktemp("adapters"), ranks=RANKS)


@pytest.fixture(scope="module")
def wanted(peft):
    prompts = worker_tools.prompts(LENGTHS)
    return [peft.generate(name, prompt) for name, prompt in zip(ROWS, prompts, strict=True)]


def served(runner, peft, execute=None, **way):
    adapters = runner.model.adapters
    for rank in RANKS:
        adapters.add(f"a{rank}", peft.path(f"a{rank}"))
    requests = [
        worker_driver.Request(
            number + 1,
            prompt,
            max_tokens=lora_tools.NUM_TOKENS,
            adapter=None if name is None else lora_tools.loaded(adapters, name),
        )
        for number, (name, prompt) in enumerate(
            zip(ROWS, worker_tools.prompts(LENGTHS), strict=True)
        )
    ]
    sizes = {"max_num_seqs": 12, "num_blocks": 160, "block_size": 4} | way
    driver = worker_driver.Driver(execute or runner.answer, **sizes)
    return [request.output for request in driver.run(requests)]


@needs_library
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("way", [{}, {"budget": 7, "preempt_every": 5}])
def test_tokens_are_those_of_peft(module, peft, wanted, fuse, way):
    runner = lora_tools.runner(copy.deepcopy(module), max_loras=3, fuse=fuse, kernels=found())
    assert served(runner, peft, **way) == wanted
    assert all((layer.kernel is not None) == fuse for layer in runner.model.adapters.layers)


@needs_library
def test_attention_between_adapted_projections_has_its_kernel(module, peft, wanted, monkeypatch):
    runner = lora_tools.runner(
        copy.deepcopy(module), max_loras=3, kernels=found(), num_blocks=NUM_BLOCKS
    )
    layers = runner.model.forward.layers
    assert all(isinstance(layer.attention, KernelAttention) for layer in layers)
    calls = []
    for layer in layers:
        kernel = layer.attention.kernel
        monkeypatch.setattr(
            layer.attention,
            "kernel",
            lambda *given, kernel=kernel: calls.append(1) or kernel(*given),
        )
    assert served(runner, peft, num_blocks=NUM_BLOCKS) == wanted
    assert len(calls) >= len(layers) * (lora_tools.NUM_TOKENS - 2)


@needs_library
def test_one_that_computes_otherwise_is_not_used(module, peft, wanted, caplog):
    with caplog.at_level(logging.INFO, "tenonry.worker"):
        runner = lora_tools.runner(copy.deepcopy(module), max_loras=3, kernels=found(Wrong))
    assert "Step kernels 'wrong' of adapters: 0 layers; with torch: " in caplog.text
    assert served(runner, peft) == wanted


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", [CpuKernels, Wrong])
def test_layers_of_both_types_are_tried(dtype, kernels):
    layer = LowRank([Part("a", 0, 24), Part("b", 24, 40)], 4, dtype, torch.device("cpu"))
    LowRankKernels(found(kernels), 16).give(layer, 32)
    assert (layer.make_kernel is not None) == (kernels is CpuKernels)


def test_one_that_raises_is_left_out_with_a_warning(module, peft, wanted, caplog):
    class Raising(StepKernels):
        name = "raising"

        @classmethod
        def refusal(cls):
            return None

        @makes(LowRankParts)
        def low_rank(self, parts):
            raise RuntimeError("no such tile")

    runner = lora_tools.runner(copy.deepcopy(module), max_loras=3, kernels=found(Raising))
    warnings = {each.getMessage() for each in caplog.records if each.levelname == "WARNING"}
    assert warnings == {
        "Step kernels 'raising': what adapters add is left to torch, its trial failed: RuntimeError: no such tile"
    }
    assert served(runner, peft) == wanted


@needs_library
def test_what_is_slower_is_not_used():
    class Slow(CpuKernels):
        def low_rank(self, parts):
            kernel = super().low_rank(parts)

            def late(*given):
                for _ in range(200):
                    torch.randn(1000).sort()
                kernel(*given)

            return late

    layer = LowRank([Part("a", 0, 24)], 4, torch.float32, torch.device("cpu"))
    LowRankKernels(FoundKernels(Slow(), is_asked_for=False), 16).give(layer, 32)
    assert layer.make_kernel is None


def test_a_batch_lasts_as_long_as_the_same_rows_decode(module, peft, wanted, monkeypatch):
    made = []

    class Counted(AdapterBatch):
        def __init__(self, *given):
            made.append(len(given[0]))
            super().__init__(*given)

    monkeypatch.setattr("tenonry_worker_torch.runner.features.adapters.AdapterBatch", Counted)
    runner = lora_tools.runner(copy.deepcopy(module), max_loras=3)
    assert served(runner, peft) == wanted
    assert made.count(len(ROWS)) == 2  # the last tokens of the prompts, and the first decoding step
    made.clear()

    def execute(output):
        runner.forward_pass.dummy()  # forgets the batch
        return runner.answer(output)

    assert served(runner, peft, execute) == wanted
    assert made.count(len(ROWS)) > 2
