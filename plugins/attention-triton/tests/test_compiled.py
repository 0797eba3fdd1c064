"""The kernels compiled for four generations of cards, without a GPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json

import pytest
from cases import COMPILED_MATRICES, COMPILED_ROWS
from programs import FOLDER, run

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="no Triton: pip install 'tenonry-attention-triton[interpreter]'",
    ),
]
SMALLEST_SHARED = 99 << 10  # bytes that a program may have on every card from sm_80 on
# Registers of each kernel for heads of 128 in 16 bits; the most that leave room for the wanted programs at a time.
MOST_REGISTERS = {
    "write": 32, "split": 128, "whole": 128, "join": 64, "chunk": 255, "turn": 64, "norm": 64, "gate": 40,
    "norm-in-fp8": 64, "gate-in-fp8": 64,
}  # fmt: skip
MOST_IN_8_BITS = MOST_REGISTERS | {"write": 40}
MOST_OF_MATRICES = 192


STATED = json.loads((FOLDER / "registers.json").read_text("utf-8"))


def check_stated(arch, found):
    """`renew_registers.py` states the registers of every kernel on a card, for one version of Triton."""
    if importlib.metadata.version("triton") == STATED["triton"]:
        stated = STATED[f"sm_{arch}"]
        used = {name: each["registers"] for name, each in found.items()}
        assert used == {name: stated.get(name) for name in used}


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
    assert len(found) == (5 if shape == "mla" else 10)
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
