"""The kernels without a GPU: in Triton's interpreter against float64, and compiled for four generations of cards."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json

import pytest
from cases import CASES, COMPILED_MATRICES, COMPILED_ROWS, MATRICES, PARTS
from programs import FOLDER, run

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
SMALLEST_SHARED = 99 << 10  # bytes that a program may have on every card from sm_80 on
# Registers of each kernel for heads of 128 in 16 bits; the most that leave room for the wanted programs at a time.
MOST_REGISTERS = {
    "write": 32, "split": 128, "whole": 128, "join": 64, "chunk": 255, "turn": 64, "norm": 64, "gate": 40,
}  # fmt: skip
MOST_IN_8_BITS = MOST_REGISTERS | {"write": 40}
MOST_OF_MATRICES = 192
MOST_LAUNCHES = 9  # of a layer in a decoding step


STATED = json.loads((FOLDER / "registers.json").read_text("utf-8"))


def check_stated(arch, found):
    """`renew_registers.py` states the registers of a card."""
    stated = STATED.get(f"sm_{arch}", {})
    if importlib.metadata.version("triton") == STATED["triton"]:
        known = {name: used["registers"] for name, used in found.items() if name in stated}
        assert known == {name: stated[name] for name in known}


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


@pytest.mark.parametrize(
    "arch",
    ["90", *(pytest.param(arch, marks=pytest.mark.nightly) for arch in ("80", "100", "120"))],
)
def test_products_with_quantised_matrices_compile_without_spills(arch):
    found = run("compiled_matrices.py", arch, interpreted=False)
    assert found.keys() == {*COMPILED_MATRICES, *COMPILED_ROWS}
    check_stated(arch, found)
    for name, used in found.items():
        assert used["spills"] == 0, name
        if name in COMPILED_ROWS:
            continue
        assert used["registers"] <= MOST_OF_MATRICES, name
        assert used["shared"] <= SMALLEST_SHARED, name
        assert used["wide loads"], name
        assert used["products"] or "float32" in name, name


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
    """With weights in 4 bits, too; in a step of so many rows that no keys are split. Splits are joined by a tenth."""
    assert max(model["launches"]) <= MOST_LAUNCHES


def test_no_step_compiles_a_kernel():
    """Of any number of rows and tokens: each variant was launched before, by load, cache and warm-up."""
    assert run("interpreted_variants.py", interpreted=True) == {"floats": [], "int4": []}


COMPILED = [("90", "llama"), ("90", "float32"), ("80", "llama fp8")]
AT_NIGHT = [
    (arch, shape)
    for arch in ("80", "90", "100", "120")
    for shape in (
        "llama",
        "gpt-oss",
        "gemma",
        "mla",
        "float32",
        "wide float32",
        *(
            f"{name} {kept}"
            for name in ("llama", "gemma", "float32", "wide float32")
            for kept in ("int8", "fp8")
        ),
    )
    if (arch, shape) not in COMPILED
]


@pytest.mark.parametrize(
    ("arch", "shape"),
    [*COMPILED, *(pytest.param(*case, marks=pytest.mark.nightly) for case in AT_NIGHT)],
)
def test_kernels_compile_without_spills(arch, shape):
    found = run("compiled.py", arch, shape, interpreted=False)
    assert len(found) == (5 if shape == "mla" else 8)
    check_stated(arch, found)
    for name, used in found.items():
        kernel = name.partition(" ")[0]
        assert used["spills"] == 0, name
        assert used["shared"] <= SMALLEST_SHARED, name
        if shape.startswith("llama"):
            most = MOST_REGISTERS if shape == "llama" else MOST_IN_8_BITS
            assert used["registers"] <= most[kernel], name
        if kernel in {"split", "whole", "chunk"}:
            assert used["wide loads"], name
            assert used["products"] or "float32" in shape, name
