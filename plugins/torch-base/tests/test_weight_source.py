"""Tensors of a source of new weights, whose file is truncated between header and read."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import save_file

from tenonry.errors import ModelError
from tenonry_torch_base.weight_source import StoredSlice, read_source


def test_a_file_that_is_truncated_after_its_header_was_read_is_named_with_the_tensor(tmp_path):
    path = tmp_path / "new.safetensors"
    save_file({"a.weight": torch.ones(4, 4), "b.weight": torch.ones(4, 4)}, path)
    tensors = read_source(str(path), None)
    os.truncate(path, path.stat().st_size - 8)
    assert torch.equal(StoredSlice("a.weight", tensors["a.weight"])[...], torch.ones(4, 4))
    with pytest.raises(ModelError, match=r"new\.safetensors: tensor b\.weight ends at .*truncated"):
        StoredSlice("b.weight", tensors["b.weight"])[...]
