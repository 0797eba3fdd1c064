"""Models with quantised matrices and step kernels: layers with kernels, their results, and their removal."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_kernels_cpu.library import instruction_sets
from tenonry_torch_base.buffers import HostBuffers
from tenonry_torch_base.low_bit import low_bit_weight
from tenonry_torch_base.quantisations import Quantisation, QuantisedLinear, QuantisedWeight
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.fuse.layer import KERNEL_TOKENS
from tenonry_worker_torch.step_kernels import FoundKernels
from tenonry_worker_torch_cpu.kernels.low_bit import LowBitKernels, LowBitLayer
from tenonry_worker_torch_cpu.kernels.rows import Budget

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
NUM_BLOCKS = 512
HAS_AVX2 = CpuKernels.refusal() is None and "avx2" in instruction_sets()
LOST = 0.5  # a wrong token is 2 or more below the best, in shares of the spread of logits
pytestmark = [
    pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built"),
    pytest.mark.slow,  # whole models
]


class FloatProduct(QuantisedLinear):
    def __init__(self, weight, bias, dtype):
        self.weight = weight.dequantised(dtype)
        self.bias = bias

    def __call__(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias)


class Bytes(Quantisation):
    """A scale per output, and products of floats."""

    name = "bytes"
    tolerance = 0.1

    @classmethod
    def refusal(cls, device, dtype):
        return None

    def quantise(self, weight):
        floats = weight.float()
        scales = floats.abs().amax(1, keepdim=True) / 127
        values = (floats / scales).round().to(torch.int8)
        return QuantisedWeight(bits=8, values=values, scales=scales)

    def linear(self, weight, bias, dtype):
        return FloatProduct(weight, bias, dtype)


class Wrong(CpuKernels):
    name = "wrong"

    def low_bit_linear(self, parts):
        kernel = super().low_bit_linear(parts)
        return lambda *given: kernel(*given).flip(-1)


class Fails(CpuKernels):
    name = "fails"

    def low_bit_linear(self, parts):
        raise RuntimeError("out of order")


class Slow(CpuKernels):
    name = "slow"

    def low_bit_linear(self, parts):
        kernel = super().low_bit_linear(parts)
        return lambda *given: [kernel(*given) for _ in range(200)].pop()


def module_of(dtype):
    name, values = worker_families.FAMILIES["qwen3"]
    worker_families.OTHERS["low-bit"] = (name, values | {"intermediate_size": 128})
    return worker_families.build("low-bit", seed=worker_families.SEEDS["qwen3"], dtype=dtype)


def model_of(dtype, kernels):
    return build(
        module_of(dtype),
        BuildPlan(
            worker_tools.BACKENDS["cpu"],
            HostBuffers(CPU, 1),
            max_model_len=64,
            fuse=True,
            skip_check=False,
            kernels=kernels,
            quantisation=Bytes(),
        ),
    )


def places(model):
    found = [model.forward.end.head]
    for layer in model.forward.layers:
        attention = getattr(layer.attention, "own", layer.attention)
        found += [attention.qkv, attention.out, layer.mlp.gate_up, layer.mlp.down]
    return found


def all_near(model):
    """Return True if greedy tokens are the best ones of the model's own code, except for rounding."""
    runner = worker_tools.runner(model, num_blocks=NUM_BLOCKS)
    driver = Driver(runner.answer, max_num_seqs=6, num_blocks=NUM_BLOCKS, block_size=4)
    requests = [
        Request(number + 1, prompt, max_tokens=worker_tools.OUTPUT_LENGTH)
        for number, prompt in enumerate(worker_tools.prompts())
    ]
    reference = module_of(torch.float32)
    return all(lost(reference, request) < LOST for request in driver.run(requests))


def lost(reference, request):
    tokens = request.prompt + request.output
    with torch.inference_mode():
        logits = reference(torch.tensor([tokens])).logits[0]
    of_tokens = logits[len(request.prompt) - 1 : -1]
    chosen = of_tokens.gather(1, torch.tensor(request.output)[:, None])[:, 0]
    return float(((of_tokens.amax(1) - chosen) / of_tokens.std(1)).max())


@pytest.mark.parametrize("dtype", DTYPES)
def test_low_bit_kernels_answer_like_the_original_modules(dtype, caplog):
    caplog.set_level("INFO")
    model = model_of(dtype, FoundKernels(CpuKernels(), True))
    assert all(isinstance(place, LowBitLayer) for place in places(model))
    whole = [layer.kernel is not None for layer in model.forward.layers]
    assert whole == [dtype == torch.bfloat16] * len(whole)
    assert "of 8 bits" in caplog.text
    (line,) = [each for each in caplog.messages if each.startswith("Model passes of")]
    assert line.endswith(model.chosen_kernels)
    assert "; linear, any rows: 3 × 128×64 of 8 bits" in line
    assert all_near(model)


@pytest.mark.skipif(not HAS_AVX2, reason="the processor has no AVX2")
def test_low_bit_kernels_without_packed_weights(monkeypatch, caplog):
    """In bfloat16 on a processor with AVX2 alone; other matrices lie in blocks."""
    monkeypatch.setattr("tenonry_worker_torch_cpu.packing.widened.can_pack", lambda *_: False)
    caplog.set_level("INFO")
    model = model_of(torch.bfloat16, FoundKernels(CpuKernels("avx2"), True))
    assert all(isinstance(place, LowBitLayer) for place in places(model))
    assert all(layer.kernel is not None for layer in model.forward.layers)
    assert "Step kernels 'cpu' (avx2): " in model.chosen_kernels
    assert "; linear, any rows: 3 × " in model.chosen_kernels
    assert model.chosen_kernels in caplog.text
    assert all_near(model)


@pytest.mark.parametrize("kernels", [Wrong, Fails])
def test_kernels_that_are_wrong_or_fail_leave_matrices_to_the_quantisation(kernels):
    model = model_of(torch.float32, FoundKernels(kernels(), True))
    assert all(isinstance(place, FloatProduct) for place in places(model))
    assert all_near(model)


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_are_taken_back_where_the_whole_model_differs(dtype, monkeypatch, caplog):
    """For errors that a comparison of parts misses."""
    monkeypatch.setattr(Budget, "most_rows", lambda *_, **__: KERNEL_TOKENS)
    model = model_of(dtype, FoundKernels(Wrong(), True))
    assert all(isinstance(place, FloatProduct) for place in places(model))
    assert "model pass 'kernels' changes results and is left out" in caplog.text
    assert all_near(model)


def test_kernels_that_are_slower_are_not_used(monkeypatch):
    monkeypatch.setattr(Budget, "most_rows", lambda *_, **__: 0)
    model = model_of(torch.float32, FoundKernels(CpuKernels(), False))
    assert all(isinstance(place, FloatProduct) for place in places(model))


def test_a_stored_matrix_keeps_a_kernel_that_is_slower():
    """Any other layer would need a second copy of the matrix."""
    stored = low_bit_weight(Bytes().quantise(torch.randn(128, 64)), None)
    kernels = LowBitKernels(FoundKernels(Slow(), False), Bytes(), torch.bfloat16)
    assert isinstance(kernels.layer(stored, None), LowBitLayer)


class Words(Bytes):
    input_bits = 16


@pytest.mark.parametrize("is_stored", [True, False])
def test_kernels_round_inputs_as_far_as_the_quantisation_has_it(is_stored):
    matrix = QuantisedWeight(
        bits=4,
        values=torch.randint(-8, 8, (128, 64)).to(torch.int8),
        scales=torch.rand(128, 2) + 0.1,
    )
    weight = low_bit_weight(matrix, None) if is_stored else matrix
    x = torch.randn(5, 64)
    wanted = x @ matrix.dequantised().t()
    errors = []
    for quantisation in (Bytes(), Words()):
        kernels = LowBitKernels(FoundKernels(CpuKernels(), True), quantisation, torch.float32)
        got = kernels.layer(weight, None)(x)
        errors.append(float((got - wanted).norm() / wanted.norm()))
    assert errors[1] < 1e-3 < errors[0]


def test_inputs_of_16_bits_have_no_kernel_over_large_groups():
    stored = low_bit_weight(Bytes().quantise(torch.randn(128, 512)), None)
    kernels = LowBitKernels(FoundKernels(CpuKernels(), True), Words(), torch.float32)
    assert kernels.layer(stored, None) is None


def test_a_stored_matrix_has_no_kernel_that_is_wrong():
    stored = low_bit_weight(Bytes().quantise(torch.randn(128, 64)), None)
    kernels = LowBitKernels(FoundKernels(Wrong(), False), Bytes(), torch.bfloat16)
    assert kernels.layer(stored, None) is None
