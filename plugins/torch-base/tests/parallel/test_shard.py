from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tenonry.errors import ModelError
from tenonry_torch_base.parallel.shard import FileSlice, Shard

WHOLE = torch.arange(48.0).view(6, 8)


@pytest.mark.parametrize("dim", [-1, -2])
def test_pieces_put_together_are_the_whole(dim):
    pieces = [Shard(dim, index, 2).cut(WHOLE) for index in range(2)]
    assert torch.equal(torch.cat(pieces, dim), WHOLE)
    assert all(list(piece.shape) == Shard(dim, 0, 2).shape(WHOLE.shape, "w") for piece in pieces)


def test_things_that_lie_side_by_side_are_each_cut():
    """Gate above up: a rank gets the same rows of both."""
    shard = Shard(-2, 1, 3, parts=2)
    assert shard.cut(WHOLE).tolist() == WHOLE[[1, 4]].tolist()
    assert shard.shape([6, 8], "w") == [2, 8]
    assert shard.cut(WHOLE[:3], parts=1).tolist() == WHOLE[1:2].tolist()  # only the gate


def test_a_size_that_does_not_divide_is_refused_with_the_numbers():
    with pytest.raises(
        ModelError, match=r"w of shape \[6, 8\] cannot be cut into 4 equal pieces along 6"
    ):
        Shard(-2, 0, 4).shape([6, 8], "w")


def test_the_last_piece_of_a_padded_size_ends_in_zeros():
    shards = [Shard(-2, index, 4, is_padded=True) for index in range(4)]
    assert [shard.shape([6, 8], "w") for shard in shards] == [[2, 8]] * 4
    pieces = torch.cat([shard.cut(WHOLE) for shard in shards])
    assert torch.equal(pieces[:6], WHOLE)
    assert not pieces[6:].any()


def test_of_a_file_only_the_piece_is_read(tmp_path):
    save_file({"w": WHOLE, "scalar": torch.tensor(3.0)}, tmp_path / "w.safetensors")
    asked = []

    class Recording:
        def __init__(self, source):
            self.source = source

        def get_shape(self):
            return self.source.get_shape()

        def __getitem__(self, index):
            asked.append(index)
            return self.source[index]

    with safe_open(tmp_path / "w.safetensors", framework="pt") as file:
        piece = FileSlice(Recording(file.get_slice("w")), Shard(-1, 1, 4))[...]
        assert torch.equal(piece, WHOLE[:, 2:4])
        assert asked == [(slice(None), slice(2, 4))]
        assert torch.equal(FileSlice(file.get_slice("w"), None)[...], WHOLE)
        assert float(FileSlice(file.get_slice("scalar"), None)[...]) == 3.0
