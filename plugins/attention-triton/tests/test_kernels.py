"""The kernels in Triton's interpreter against float64, without a GPU."""

from __future__ import annotations

import importlib.util

import pytest
from cases import CASES, MATRICES, PARTS
from programs import run

pytestmark = [
    pytest.mark.timeout(600),  # the interpreter takes half a minute of a processor for a model
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="no Triton: pip install 'tenonry-attention-triton[interpreter]'",
    ),
]
LIMITS = {"float32": 1e-6, "float16": 1e-3}


@pytest.fixture(scope="module")
def errors():
    return run("interpreted.py", interpreted=True)


@pytest.mark.parametrize("case", CASES)
def test_a_step_equals_float64(errors, case):
    """Every slot that no row has written holds NaN, the ends of its last block and what its window left included."""
    assert errors[case] <= LIMITS[CASES[case].get("dtype", "float32")]


@pytest.fixture(scope="module")
def part_errors():
    return run("interpreted_parts.py", interpreted=True)


@pytest.mark.parametrize("case", PARTS)
def test_a_kernel_between_matrix_products_equals_float64(part_errors, case):
    assert part_errors[case] <= LIMITS[PARTS[case][2]]


@pytest.fixture(scope="module")
def matrix_errors():
    return run("interpreted_matrices.py", interpreted=True)


@pytest.mark.parametrize("case", MATRICES)
def test_a_product_with_a_quantised_matrix_equals_float64(matrix_errors, case):
    assert matrix_errors[case] <= LIMITS[MATRICES[case][3]]


def test_rows_are_rounded_to_fp8_as_torch_rounds_them(matrix_errors):
    assert matrix_errors["scaled"] == [True] * 6


def test_thresholds_of_draws_are_those_of_the_cpu():
    """To the bit, with and without top-k, top-p and min-p, ties included; so are the drawn tokens."""
    for case, (same, rows) in run("interpreted_thresholds.py", interpreted=True).items():
        assert same == rows, case


def test_a_model_serves_quantised_weights_with_the_kernel():
    """Q, K and V together, output, gate and up together, down, and the head."""
    found = run("interpreted_quantised.py", interpreted=True)
    assert found == {"int4": [4] * 5, "int8": [8] * 5}


@pytest.fixture(scope="module")
def model():
    return run("interpreted_model.py", interpreted=True)


@pytest.mark.parametrize("way", ["triton", "triton-layers"])
def test_a_model_generates_the_tokens_of_the_reference_backend(model, way):
    """Through the worker's own check of a model, then prompts and decoding steps."""
    assert model[way] == model["sdpa"]
    assert len({tuple(step) for step in model[way]}) > 1


def test_a_model_with_kv_in_8_bits_does_so_as_well(model):
    assert model["triton-layers int8"] == model["sdpa int8"]


@pytest.fixture(scope="module")
def kept():
    return run("interpreted_kept.py", interpreted=True)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_vectors_in_8_bits_are_those_of_torch(kept, kind):
    """To the bit, subnormal numbers and ties included; what is not finite stays so."""
    assert kept[kind] == {"written": True, "read": True, "not finite": True}


def test_a_layer_takes_nine_launches(model):
    """With quantised weights, too; in a step of so many rows that no keys are split. Splits are joined by a tenth.
    Products in fp8 round the rows of attention by one more, those of norms and gates by none.
    """
    most = {"floats": 9, "int4": 9, "int8": 9, "fp8": 10}
    assert model["launches"] == most


def test_no_step_compiles_a_kernel():
    """Of any number of rows and tokens: each variant was launched before, by load, cache and warm-up."""
    assert run("interpreted_variants.py", interpreted=True) == {"floats": [], "int4": [], "fp8": []}
