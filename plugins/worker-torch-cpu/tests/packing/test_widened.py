"""Linear layers in bfloat16 where oneDNN does not compute it: their products, and which of them a model gets."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_torch_base.kernel_parts import LinearParts
from tenonry_torch_base.step_kernels import Refusal, StepKernels, makes
from tenonry_worker_torch.fuse.generic import pack_linears
from tenonry_worker_torch.fuse.linear import DenseLinear, merge, packed_rows
from tenonry_worker_torch.step_kernels import FoundKernels
from tenonry_worker_torch_cpu.packing.widened import (
    FEW_ROWS,
    BlockedLinear,
    BlockedPacking,
    WidenedLinear,
    WidenedModule,
    WidenedPacking,
    packing_for,
    widened_linear,
)

CPU = torch.device("cpu")
HALF = torch.bfloat16
ROUNDING = 1 / 128  # of bfloat16
needs_library = pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built")


@pytest.fixture
def without_onednn(monkeypatch):
    """As on a CPU on which oneDNN has no bfloat16."""
    monkeypatch.setattr("tenonry_worker_torch_cpu.packing.widened.can_pack", lambda *_: False)


def drawn(outputs, inputs, count, *, has_bias):
    torch.manual_seed(outputs + inputs + count)
    weight = torch.randn(outputs, inputs).to(HALF)
    bias = torch.randn(outputs).to(HALF) if has_bias else None
    return weight, bias, torch.randn(count, inputs).to(HALF)


def is_product(made, weight, bias, x, other=None):
    """Up to rounding of the result, once or twice."""
    wanted = x.float() @ weight.float().T
    for term in (bias, other):
        wanted = wanted if term is None else wanted + term.float()
    assert made.dtype == HALF
    return bool(((made.float() - wanted).abs() <= ROUNDING * (wanted.abs() + 8)).all())


@given(
    st.integers(1, 200),
    st.integers(1, 90).map(lambda half: 2 * half),
    st.integers(1, 20),
    st.booleans(),
)
def test_layers_in_blocks_and_in_rows_compute_the_product(outputs, inputs, count, has_bias):
    weight, bias, x = drawn(outputs, inputs, count, has_bias=has_bias)
    other = torch.randn(count, outputs).to(HALF)
    for layer in (BlockedLinear(weight, bias), WidenedLinear(weight, bias)):
        assert is_product(layer(x), weight, bias, x)
        assert is_product(layer.add(x, other), weight, bias, x, other)


@given(st.integers(1, 200), st.integers(1, 90).map(lambda half: 2 * half))
def test_weight_comes_back_from_its_blocks(outputs, inputs):
    weight, _, _ = drawn(outputs, inputs, 1, has_bias=False)
    assert torch.equal(BlockedLinear(weight, None).in_rows(), weight)


@pytest.mark.parametrize("count", [1, FEW_ROWS + 1])
def test_weights_are_widened_a_piece_at_a_time(monkeypatch, count):
    monkeypatch.setattr("tenonry_worker_torch_cpu.packing.widened.PIECE", 64 * 32)
    weight, bias, x = drawn(200, 32, count, has_bias=True)
    assert is_product(BlockedLinear(weight, bias)(x), weight, bias, x)
    assert is_product(widened_linear(x, weight, bias), weight, bias, x)


def test_rows_may_have_more_dimensions():
    weight, bias, x = drawn(8, 6, 20, has_bias=True)
    made = widened_linear(x.view(4, 5, 6), weight, bias)
    assert made.shape == (4, 5, 8)
    assert torch.equal(made.view(20, 8), widened_linear(x, weight, bias))


def test_sample_is_a_layer_of_the_first_outputs():
    weight, bias, x = drawn(150, 32, 3, has_bias=True)
    own = BlockedLinear(weight, bias)
    some = own.sample(64)
    assert some.shape == (64, 32)
    assert torch.equal(some(x), own(x)[:, :64])
    assert torch.equal(some.in_rows(), weight[:64])
    assert own.sample(192) is own


def test_layout_follows_the_processor_and_the_kernels(monkeypatch, without_onednn):
    kernels = Multiplying()
    assert isinstance(packing_for(HALF, CPU, kernels), BlockedPacking)
    assert isinstance(packing_for(HALF, CPU, None), WidenedPacking)
    assert packing_for(torch.float32, CPU, kernels) is None
    assert packing_for(HALF, torch.device("cuda"), kernels) is None
    monkeypatch.setattr("tenonry_worker_torch_cpu.packing.widened.can_pack", lambda *_: True)
    assert type(packing_for(HALF, CPU, kernels)).__name__ == "OneDnnPacking"


class Multiplying(StepKernels):
    """Kernels of linear layers with an even number of outputs."""

    name = "multiplying"

    @classmethod
    def refusal(cls):
        return None

    @makes(LinearParts)
    def linear(self, parts):
        return Refusal("odd") if parts.weight.outputs % 2 else BlockedLinear


def test_modules_lose_what_lies_in_blocks_and_keep_what_does_not():
    packing = BlockedPacking(Multiplying())
    modules = [nn.Linear(4, 6, dtype=HALF), nn.Linear(4, 2, dtype=HALF)]
    weights = [module.weight.detach().clone() for module in modules]
    made = packing.dense(merge(modules))
    assert isinstance(made, BlockedLinear)
    for module, weight in zip(modules, weights, strict=True):
        assert module.weight.numel() == 0
        assert torch.equal(packed_rows(module), weight)
    for left in (nn.Linear(4, 7, dtype=HALF), nn.Linear(3, 6, dtype=HALF)):
        made = packing.dense(DenseLinear(left.weight.detach(), left.bias.detach(), [left]))
        assert isinstance(made, WidenedLinear)
        assert left.weight.numel()


def test_layers_of_a_model_that_runs_its_own_code_widen(without_onednn):
    linear = nn.Linear(6, 8, dtype=HALF)
    model = nn.Sequential(linear, nn.Linear(8, 2))
    assert pack_linears(model, packing_for(HALF, CPU, None)) == 1
    assert isinstance(model[0], WidenedModule)
    assert model[0].weight is linear.weight
    x = torch.randn(20, 6).to(HALF)
    assert is_product(model[0](x), linear.weight, linear.bias, x)
    assert [name for name, _ in model.named_parameters()] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]


@needs_library
def test_model_without_kernels_widens_and_with_them_lies_in_blocks(without_onednn):
    def head_of(kernels):
        module = worker_families.build("qwen3", seed=0, dtype=HALF)
        return worker_tools.loaded(module, kernels=kernels).forward.end.head

    assert isinstance(head_of(None), WidenedLinear)
    assert isinstance(head_of(FoundKernels(CpuKernels(), True)).own, BlockedLinear)
