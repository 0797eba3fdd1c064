"""Weights of GGUF files as numbers, compared with transformers' results for the same blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers.integrations.gguf.dequant import dequantize

from tenonry.errors import ModelError
from tenonry_hf_hub import read_gguf_tensors
from tenonry_testkit import gguf_files
from tenonry_torch_base import gguf as under_test
from tenonry_torch_base.gguf import gguf_slices, in_halves

IN_BLOCKS = (
    "Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
)  # fmt: skip
UP = "model.layers.0.mlp.up_proj.weight"


def stored(path, name):
    """A tensor's bytes."""
    tensor = read_gguf_tensors(path)[name]
    return tensor, path.read_bytes()[tensor.begin : tensor.end]


@pytest.mark.parametrize("kind", IN_BLOCKS)
def test_blocks_are_the_numbers_that_transformers_reads(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(
        under_test, "PIECE_ELEMENTS", 20 * 256
    )  # several pieces, the last one small
    path = gguf_files.write(tmp_path / "small.gguf", kind=Kind[kind])
    tensor, data = stored(path, UP)
    found = gguf_slices([path])[UP]
    assert found.get_shape() == [gguf_files.INNER, gguf_files.HIDDEN]
    blocks = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(gguf_files.INNER, -1)
    wanted = dequantize(blocks, int(Kind[kind])).view(tensor.shape)
    torch.testing.assert_close(found[...], wanted, rtol=1e-6, atol=1e-7)
    assert torch.equal(found[3:5], found[...][3:5])


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_floats_are_read_as_they_are(kind, tmp_path):
    path = gguf_files.write(tmp_path / "small.gguf", kind=Kind[kind])
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    tensor, data = stored(path, UP)
    wanted = torch.frombuffer(bytearray(data), dtype=dtype).view(tensor.shape)
    assert torch.equal(gguf_slices([path])[UP][...], wanted.float())


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1"])
def test_blocks_of_five_bits_are_near_what_was_rounded(kind, tmp_path):
    path = gguf_files.write(tmp_path / "small.gguf", kind=Kind[kind])
    wanted = torch.from_numpy(gguf_files.random_tensors("llama")["blk.0.ffn_up.weight"])
    error = gguf_slices([path])[UP][...] - wanted
    assert 0 < float(error.norm() / wanted.norm()) < 0.05


def test_pairs_become_halves_as_the_converter_made_pairs_of_them():
    heads, half, columns = 3, 4, 5
    wanted = torch.arange(heads * 2 * half * columns).view(-1, columns)
    # What llama.cpp's converter does with each head of query and key.
    written = wanted.view(heads, 2, half, columns).transpose(1, 2).reshape(-1, columns)
    assert torch.equal(in_halves(written, heads), wanted)
    assert torch.equal(in_halves(written[:, 0], heads), wanted[:, 0])
    assert in_halves(written, 0) is written


def test_numbers_that_are_not_finite_are_refused_by_name(tmp_path):
    values = gguf_files.random_tensors("llama")["blk.0.ffn_up.weight"]
    values[7, 9] = np.nan
    path = gguf_files.write(tmp_path / "small.gguf", tensors={"blk.0.ffn_up.weight": values})
    with pytest.raises(ModelError, match=r"small\.gguf: tensor blk\.0\.ffn_up\.weight holds"):
        gguf_slices([path])[UP][...]


@pytest.mark.parametrize("in_blocks", [(), (UP,)], ids=["numbers", "blocks"])
def test_a_file_that_is_truncated_after_its_header_was_read_is_named_with_the_tensor(
    in_blocks, tmp_path
):
    """An error and no signal: the bytes are read, not mapped."""
    path = gguf_files.write(tmp_path / "small.gguf", kind=Kind["Q4_1"])
    found = gguf_slices([path], in_blocks)[UP]
    path.write_bytes(path.read_bytes()[:4096])
    with pytest.raises(
        ModelError, match=r"small\.gguf: tensor blk\.0\.ffn_up\.weight ends at byte \d+.*truncated"
    ):
        found[...]
