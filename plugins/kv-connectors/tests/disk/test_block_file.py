"""A file is one block, whole and unchanged, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry_kv_connectors.disk.block_file import BlockFormat
from tenonry_kv_connectors.disk.store import read_block

NAME = bytes(range(28))
FORMAT = BlockFormat("layer.0 float32 (4, 2, 8)")
CONTENT = bytes(range(200))
WHOLE = FORMAT.header(NAME, CONTENT) + CONTENT


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("blocks") / "one.block"


def read(path, data, name=NAME, block_format=FORMAT):
    path.write_bytes(data)
    return read_block(path, name, block_format)


def test_what_was_written_is_read(path):
    assert read(path, WHOLE) == CONTENT
    assert path.exists()
    assert FORMAT.header_bytes(NAME) + len(CONTENT) == len(WHOLE)


@given(st.integers(0, len(WHOLE) - 1))
def test_a_file_that_was_cut_short_is_missing_and_removed(path, length):
    assert read(path, WHOLE[:length]) is None
    assert not path.exists()


@given(st.integers(0, len(WHOLE) * 8 - 1))
@settings(deadline=None)
def test_a_file_with_a_flipped_bit_is_missing(path, bit):
    damaged = bytearray(WHOLE)
    damaged[bit // 8] ^= 1 << bit % 8
    assert read(path, bytes(damaged)) is None


@given(st.binary(max_size=400))
def test_any_other_file_is_missing(path, data):
    assert read(path, data) is None
    assert read(path, WHOLE + data[:1] + b"x") is None


def test_another_name_and_another_layout_are_missing(path):
    assert read(path, WHOLE, name=NAME[::-1]) is None
    assert read(path, WHOLE, block_format=BlockFormat("layer.0 float32 (2, 4, 8)")) is None


def test_a_link_is_not_followed(path, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(WHOLE)
    path.symlink_to(target)
    assert read_block(path, NAME, FORMAT) is None
    assert target.read_bytes() == WHOLE
    path.unlink()
