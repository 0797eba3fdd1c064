"""Checks of a checkpoint by its headers: complete files, and a correct index."""

from __future__ import annotations

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.errors import ModelError
from tenonry_hf_hub import list_weights, read_headers, tensor_shapes
from tenonry_hf_hub.headers import read_header


def write(path, header, data=b"", size=None):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head) if size is None else size) + head + data)


def tensor(shape, begin=0, dtype="F32", itemsize=4):
    end = begin + int(np.prod(shape)) * itemsize
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def shard(folder, name, *tensors):
    """A file of these tensors, each [2, 3] in F32."""
    header = {key: tensor((2, 3), 24 * place) for place, key in enumerate(tensors)}
    write(folder / name, header, bytes(24 * len(tensors)))


def index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def headers(folder):
    return read_headers(list_weights(folder))


def test_every_tensor_is_found_where_it_is(tmp_path):
    shard(tmp_path, "a.safetensors", "one", "two")
    shard(tmp_path, "b.safetensors", "three")
    found = headers(tmp_path)
    assert sorted(found) == ["one", "three", "two"]
    assert found["two"].file.name == "a.safetensors"
    assert (found["two"].dtype, found["two"].shape) == ("F32", (2, 3))
    assert found["two"].end == (tmp_path / "a.safetensors").stat().st_size
    assert sum(tensor.num_bytes for tensor in found.values()) == 72


def test_metadata_is_no_tensor(tmp_path):
    path = tmp_path / "model.safetensors"
    write(path, {"__metadata__": {"format": "pt"}, "embed.weight": tensor((7, 3))}, bytes(84))
    assert tensor_shapes(path) == {"embed.weight": (7, 3)}


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"a": {}}', None),
        (b'{"a": {"shape": "x"}}', None),
        (b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', None),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}', None),
        (b"{}", 1 << 60),
        (b"\xff", None),
    ],
)
def test_a_broken_header_is_refused(tmp_path, header, size):
    path = tmp_path / "model.safetensors"
    write(path, header, bytes(16), size)
    with pytest.raises(ModelError, match=r"model\.safetensors is not a safetensors file"):
        read_header(path)


@pytest.mark.parametrize("kept", [0, 5, 40, -1, -25])
def test_a_truncated_file_is_named_with_what_is_lost(tmp_path, kept):
    shard(tmp_path, "model.safetensors", "one", "two")
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"model\.safetensors (is truncated: tensor two|is not a)"):
        headers(tmp_path)


def test_a_size_that_does_not_fit_its_shape(tmp_path):
    entry = tensor((2, 3)) | {"data_offsets": [0, 20]}
    write(tmp_path / "model.safetensors", {"odd": entry}, bytes(24))
    with pytest.raises(
        ModelError, match=r"model\.safetensors: tensor odd is F32 \[2, 3\].* 20 bytes"
    ):
        headers(tmp_path)


def test_a_data_type_of_tomorrow_is_not_judged(tmp_path):
    write(tmp_path / "model.safetensors", {"new": tensor((2, 3), dtype="F3_NEW")}, bytes(24))
    assert headers(tmp_path)["new"].dtype == "F3_NEW"


def test_tensors_are_where_the_files_hold_them_whatever_the_index_says(tmp_path):
    shard(tmp_path, "a.safetensors", "one")
    shard(tmp_path, "b.safetensors", "three")
    index(tmp_path, {"one": "b.safetensors", "two": "a.safetensors"})
    assert {name: found.file.name for name, found in headers(tmp_path).items()} == {
        "one": "a.safetensors",
        "three": "b.safetensors",
    }


def test_of_one_tensor_in_two_files_of_an_index_the_last_counts(tmp_path, caplog):
    shard(tmp_path, "a.safetensors", "one")
    shard(tmp_path, "b.safetensors", "one", "two")
    with pytest.raises(
        ModelError, match=r"tensor one is in .*a\.safetensors and in b\.safetensors"
    ):
        headers(tmp_path)
    index(tmp_path, {"one": "a.safetensors", "two": "b.safetensors"})
    assert headers(tmp_path)["one"].file.name == "b.safetensors"
    assert "a.safetensors and in b.safetensors; the latter is read" in caplog.text


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(data)
    with contextlib.suppress(ModelError):
        assert isinstance(read_header(path), dict)
