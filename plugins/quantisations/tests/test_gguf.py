"""Blocks of GGUF files as matrices, compared with the numbers that the library `gguf` reads from the same bytes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry.errors import ModelError
from tenonry_hf_hub import StoredTensor, find_weights, read_headers
from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_quantisations.blocks import KINDS
from tenonry_quantisations.gguf import Gguf
from tenonry_testkit import gguf_files
from tenonry_torch_base.kernel_parts import LowBitRowsParts
from tenonry_torch_base.low_bit import low_bit_weight
from tenonry_torch_base.quantisations import StoredBlocks
from tenonry_torch_base.step_kernels import StepKernels
from tenonry_torch_base.stored_matrices import StoredMatrices
from tenonry_worker_torch.loading.quantised import find_quantisation

Kind = gguf.GGMLQuantizationType
UP = "model.layers.0.mlp.up_proj.weight"
EXAMPLES = settings(max_examples=15, deadline=None)


def stored(path, name=UP):
    """Location of a matrix of the file."""
    return read_headers(find_weights(path.parent))[name]


def written(folder, kind, **options):
    return gguf_files.write(folder / "model.gguf", kind=Kind[kind], **options)


@pytest.mark.parametrize("kind", KINDS)
@EXAMPLES
@given(st.data())
def test_any_bytes_are_the_numbers_that_the_library_reads(kind, data):
    """Scales of zero, negative ones and those of any size are among them."""
    per_block, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    seed = data.draw(st.integers(0, 2**31))
    octets = np.random.default_rng(seed).integers(0, 256, (3, 2 * size), np.uint8)
    octets[1] = data.draw(st.sampled_from([0, 1, 60]))
    with np.errstate(all="ignore"):
        wanted = torch.from_numpy(gguf.dequantize(octets, Kind[kind]))
    quantised = Gguf({"quant_method": "gguf"})
    quantised.shape("up", {"weight": entry(kind, octets, 2 * per_block)})
    tensors = {"weight": torch.from_numpy(octets)}
    if not wanted.isfinite().all():
        with pytest.raises(
            ModelError, match=r"tensor up\.weight holds numbers that are not finite"
        ):
            quantised.weight("up", tensors)
        return
    made = quantised.weight("up", tensors)
    assert made.shape == (3, 2 * per_block)
    scale = wanted.abs().view(3, -1, per_block).amax(-1, keepdim=True)
    error = (made.dequantised() - wanted).abs().view(3, -1, per_block)
    assert (error <= 1e-5 * scale).all()


@pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built")
@pytest.mark.parametrize("kind", KINDS)
@EXAMPLES
@given(st.integers(0, 2**31), st.integers(1, 70), st.sampled_from([0, 1, 60, None]))
def test_kernels_lay_out_the_numbers_that_the_library_reads(kind, seed, rows, octet):
    """Any bytes, and the same numbers as by way of a matrix. Blocks of 32 inputs keep their size in the file."""
    per_block, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    octets = np.random.default_rng(seed).integers(0, 256, (rows, 2 * size), np.uint8)
    if octet is not None:
        octets[0] = octet
    with np.errstate(all="ignore"):
        wanted = torch.from_numpy(gguf.dequantize(octets, Kind[kind]))
    blocks = StoredBlocks(kind, torch.from_numpy(octets))
    if not wanted.isfinite().all():
        with pytest.raises(ValueError, match=f"matrix of {kind} has scales that are not finite"):
            CpuKernels().laid_out(blocks)
        return
    made = CpuKernels().laid_out(blocks)
    assert (made.shape, made.num_groups) == ((rows, 2 * per_block), made.scales.shape[1])
    quantised = Gguf({"quant_method": "gguf"})
    quantised.shape("up", {"weight": entry(kind, octets, 2 * per_block)})
    matrix = quantised.weight("up", {"weight": blocks.octets})
    again = low_bit_weight(matrix, None).matrix()
    assert torch.equal(made.matrix().scales, again.scales)
    assert made.has_offsets == again.has_offsets
    if not made.has_offsets or made.bits == 4:
        assert torch.equal(made.matrix().values, again.values)
        assert made.zeros is None or torch.equal(made.matrix().zeros, again.zeros)
    if per_block == 32 and made.bits == KINDS[kind].bits:
        padded = -(-rows // 64) * 64
        assert made.num_bytes == padded * 2 * size
    dequantise = CpuKernels().make(LowBitRowsParts(made, torch.float32))
    scale = wanted.abs().view(rows, -1, per_block).amax(-1, keepdim=True)
    for numbers in (dequantise(None), made.matrix().dequantised()):
        error = (numbers - wanted).abs().view(rows, -1, per_block)
        assert (error <= 2e-5 * scale).all()


def test_kernels_leave_other_kinds():
    octets = torch.zeros(2, 84, dtype=torch.uint8)
    assert StepKernels.laid_out(None, StoredBlocks("Q2_K", octets)) is None
    if CpuKernels.refusal() is None:
        assert CpuKernels().laid_out(StoredBlocks("Q2_K", octets)) is None
        assert CpuKernels().laid_out(StoredBlocks("Q8_0", octets)) is None


def entry(kind, octets, columns):
    return StoredTensor(Path("model.gguf"), kind, (len(octets), columns), 0, octets.nbytes)


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_read_what_is_stored(kind, tmp_path):
    """In 4 or 8 bits, with the numbers of the file."""
    path = written(tmp_path, kind)
    found = stored(path)
    octets = np.frombuffer(path.read_bytes()[found.begin : found.end], np.uint8)
    quantised = Gguf({"quant_method": "gguf"})
    assert quantised.is_matrix({"weight": found})
    rows, _ = quantised.shape("up", {"weight": found})
    made = quantised.weight("up", {"weight": torch.from_numpy(octets.reshape(rows, -1).copy())})
    blocks = low_bit_weight(made, None)
    assert blocks.bits == (4 if made.bits == 4 else 8)
    wanted = torch.from_numpy(gguf.dequantize(octets.reshape(rows, -1), Kind[kind]))
    torch.testing.assert_close(blocks.matrix().dequantised(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q2_K", "IQ4_NL"])
def test_other_kinds_are_left_to_floats(kind, tmp_path):
    written(tmp_path, kind)
    assert not Gguf().is_matrix({"weight": stored(tmp_path / "model.gguf")})


def test_floats_beside_matrices_are_no_matrices(tmp_path):
    path = written(tmp_path, "Q4_0")
    headers = read_headers(find_weights(path.parent))
    matrices = StoredMatrices(Gguf())
    seen = matrices.gather(headers)
    assert seen.keys() == headers.keys()
    assert UP in matrices.parts
    assert "model.norm.weight" not in matrices.parts


@pytest.mark.parametrize("asked", [None, "gguf"])
def test_a_file_of_blocks_needs_no_setting(asked, tmp_path):
    written(tmp_path, "Q4_1")
    found = find_quantisation(asked, {}, str(tmp_path), "auto")
    assert found.quantisation.name == "gguf"
    assert not found.is_at_load


def test_a_file_can_be_rounded_anew(tmp_path):
    written(tmp_path, "Q8_0")
    assert find_quantisation("int4", {}, str(tmp_path), "auto").is_at_load
    assert find_quantisation(None, {}, str(tmp_path), "dummy") is None


def test_a_file_of_floats_has_no_quantisation(tmp_path):
    written(tmp_path, "F16")
    assert find_quantisation(None, {}, str(tmp_path), "auto") is None


def test_a_type_without_layers_is_dequantised():
    cpu = torch.device("cpu")
    assert "float32 is exact" in Gguf.refusal(cpu, torch.float32)
    assert Gguf.refusal(cpu, torch.float16)
    assert Gguf.refusal(cpu, torch.bfloat16) is None
