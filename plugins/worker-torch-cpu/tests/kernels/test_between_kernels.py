"""Models in bfloat16 whose norms, rotation and gates are kernels: parts that have one, and parts left to torch."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools
from worker_tools import LOST, lost, serve

from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_torch_base.kernel_parts import Bfloat16NormParts, GateParts, TurnParts
from tenonry_torch_base.step_kernels import StepKernels, makes
from tenonry_worker_torch.step_kernels import FoundKernels
from tenonry_worker_torch_cpu.kernels.between import PackedNorm
from tenonry_worker_torch_cpu.kernels.rows import Budget

pytestmark = [
    pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built"),
    pytest.mark.slow,
]
PLACES = ("before_attention", "after_attention", "before_mlp", "after_mlp")
# Norms with a kernel of three layers and the one behind them, rotations, gates.
FAMILIES = {
    "llama": (7, 3, 3),
    "qwen3": (7, 3, 3),
    "mistral": (7, 3, 3),
    "phi3": (7, 3, 3),
    "gemma3": (13, 3, 0),  # gates of another kind
    "gemma2": (13, 3, 0),
}


class OnlyBetween(StepKernels):
    """Those between products and no others, in the class's own way."""

    name = "only-between"

    def __init__(self):
        self.kernels = CpuKernels()

    @classmethod
    def refusal(cls):
        return None

    @makes(Bfloat16NormParts)
    def bfloat16_norm(self, parts):
        return self.kernels.make(parts)

    @makes(TurnParts)
    def turn_heads(self, parts):
        return self.kernels.make(parts)

    @makes(GateParts)
    def gate(self, parts):
        return self.kernels.make(parts)


class WrongNorm(OnlyBetween):
    def bfloat16_norm(self, parts):
        kernel = super().bfloat16_norm(parts)
        return lambda x: kernel(x).neg_()


class WrongTurn(OnlyBetween):
    """Values are changed as well."""

    def turn_heads(self, parts):
        kernel = super().turn_heads(parts)

        def made(projected, cos, sin):
            kernel(projected, cos, sin)
            projected[:, -parts.attention.size :].neg_()

        return made


class WrongGate(OnlyBetween):
    def gate(self, parts):
        kernel = super().gate(parts)
        return lambda both: kernel(both.flip(1))


class RaisingGate(OnlyBetween):
    def gate(self, parts):
        def made(_):
            raise RuntimeError("no gate today")

        return made


def module_of(family):
    return worker_families.build(family, seed=1, dtype=torch.bfloat16)


def model_of(family, kernels):
    return worker_tools.loaded(module_of(family), kernels=FoundKernels(kernels, True))


def used(model):
    forward = model.forward
    norms = [getattr(layer, place) for layer in forward.layers for place in PLACES]
    norms.append(forward.end.norm)
    turns = [layer.attention.turn_kernel for layer in forward.layers]
    gates = [layer.mlp.gate_kernel for layer in forward.layers]
    return (
        sum(type(norm) is PackedNorm for norm in norms),
        sum(turn is not None for turn in turns),
        sum(gate is not None for gate in gates),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_that_are_known_have_kernels(family):
    assert used(model_of(family, OnlyBetween())) == FAMILIES[family]


@pytest.mark.parametrize(
    ("kernels", "wanted"),
    [
        (WrongNorm, (0, 3, 3)),
        (WrongTurn, (7, 0, 3)),
        (WrongGate, (7, 3, 0)),
        (RaisingGate, (7, 3, 0)),
    ],
)
def test_a_kernel_that_computes_something_else_is_left_to_torch(kernels, wanted):
    assert used(model_of("qwen3", kernels())) == wanted


def test_all_are_taken_back_where_the_whole_model_differs(monkeypatch):
    """For errors that the comparison of parts misses."""
    monkeypatch.setattr(Budget, "is_better", lambda *_, **__: True)
    model = model_of("qwen3", WrongNorm())
    assert used(model) == (0, 0, 0)
    assert all(lost(module_of("qwen3").float(), request) < LOST for request in serve(model))


@pytest.mark.parametrize("way", [{}, {"budget": 7}, {"depth": 3, "budget": 20}])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_tokens_are_the_best_ones_of_the_models_own_code(family, way):
    """Except for rounding: prompts whole and in chunks, together with decoding rows."""
    model = model_of(family, OnlyBetween())
    reference = module_of(family).float()
    assert all(lost(reference, request) < LOST for request in serve(model, **way))


def test_a_norm_computes_rows_that_are_no_contiguous_ones_with_torch():
    norm = model_of("llama", OnlyBetween()).forward.end.norm
    x = torch.randn(6, 2 * len(norm.weight)).bfloat16()
    part = x[:, : len(norm.weight)]
    assert not part.is_contiguous()
    torch.testing.assert_close(norm(part), norm.own(part), rtol=0, atol=0)
    torch.testing.assert_close(norm(part.contiguous()), norm.own(part), rtol=2e-2, atol=2e-2)
