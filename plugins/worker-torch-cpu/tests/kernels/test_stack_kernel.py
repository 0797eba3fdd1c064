"""Models in bfloat16 all of whose layers are one kernel in steps whose rows only decode."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools
from worker_tools import LOST, lost, serve

from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_torch_base.kernel_parts import StackParts
from tenonry_torch_base.step_kernels import Refusal
from tenonry_worker_torch.fuse.layer import KERNEL_TOKENS
from tenonry_worker_torch.step_kernels import FoundKernels
from tenonry_worker_torch_cpu.kernels.rows import Budget

pytestmark = pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built")


class NoStack(CpuKernels):
    def stack(self, parts):
        return Refusal("no stacks today")


class Reversed(CpuKernels):
    """The layers in another order."""

    name = "reversed"

    def stack(self, parts):
        return super().stack(StackParts(parts.layers[::-1]))


class OthersKeys(CpuKernels):
    """Layers write to the K/V of others."""

    def stack(self, parts):
        kernel = super().stack(parts)
        return lambda hidden, cos, sin, keys, blocks: kernel(hidden, cos, sin, keys, blocks[::-1])


def module_of(family):
    """With feed-forward parts that end at a block's end."""
    name, values = worker_families.FAMILIES[family]
    other = f"stacked-{family}"
    worker_families.OTHERS[other] = (name, values | {"intermediate_size": 128})
    return worker_families.build(other, seed=worker_families.SEEDS[family], dtype=torch.bfloat16)


def model_of(family, kernels=CpuKernels, kept="auto"):
    return worker_tools.loaded(
        module_of(family), kernels=FoundKernels(kernels(), True), kv_cache_dtype=kept
    )


@pytest.mark.parametrize("kept", ["auto", "int8"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
@pytest.mark.slow
def test_steps_that_only_decode_are_one_call(monkeypatch, family, kept):
    model = model_of(family, kept=kept)
    stack = model.forward.stack
    seen = []

    def counted(hidden, cos, sin):
        made = stack(hidden, cos, sin)
        seen.append((len(hidden), made is not None))
        return made

    monkeypatch.setattr(model.forward, "stack", counted)
    requests = serve(model)
    assert [used for count, used in seen if count <= 6] == [True] * (worker_tools.OUTPUT_LENGTH - 1)
    assert not any(used for count, used in seen if count > 6)  # the step with the prompts
    assert all(lost(module_of(family).float(), request) < LOST for request in requests)


@pytest.mark.parametrize("kernels", [NoStack, Reversed, OthersKeys])
def test_layers_are_called_one_by_one_where_there_is_no_right_one(kernels):
    model = model_of("qwen3", kernels)
    assert model.forward.stack is None
    assert all(layer.kernel is not None for layer in model.forward.layers)
    assert "stack" not in model.chosen_kernels.partition("; with torch")[0]
    assert all(lost(module_of("qwen3").float(), request) < LOST for request in serve(model))


def test_families_without_a_kernel_for_each_layer_have_none():
    assert model_of("gemma3").forward.stack is None


def test_it_is_taken_back_where_the_whole_model_differs(monkeypatch):
    monkeypatch.setattr(Budget, "most_rows", lambda *_, **__: KERNEL_TOKENS)
    monkeypatch.setattr(Budget, "is_better", lambda *_, **__: True)

    class Wrong(CpuKernels):
        def layer(self, parts):
            kernel = super().layer(parts)
            return lambda *given: kernel(*given).flip(-1)

        def stack(self, parts):
            return lambda hidden, *_: hidden.flip(-1)

    model = model_of("qwen3", Wrong)
    assert model.forward.stack is None
    assert all(layer.kernel is None for layer in model.forward.layers)
    assert all(lost(module_of("qwen3").float(), request) < LOST for request in serve(model))
