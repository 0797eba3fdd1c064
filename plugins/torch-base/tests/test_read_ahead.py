"""Files outside the page cache are read in parallel, and once; progress is logged as one line now and then."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tenonry_hf_hub import StoredTensor
from tenonry_torch_base import read_ahead as module
from tenonry_torch_base.read_ahead import Piece, Progress, is_cached, pieces_of, read_ahead


def checkpoint(*tensors):
    return SimpleNamespace(pieces=list(tensors), files=sorted({tensor.file for tensor in tensors}))


@pytest.fixture
def stored(tmp_path):
    """Two files of three pieces each, of which the second's middle belongs to no tensor of the model."""
    size = 3 * module.PIECE_BYTES
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(bytes(size))
    piece = module.PIECE_BYTES
    return checkpoint(
        StoredTensor(tmp_path / "a", "U8", (size,), 0, size),
        StoredTensor(tmp_path / "b", "U8", (piece,), 0, piece),
        StoredTensor(tmp_path / "b", "U8", (piece,), 2 * piece, size),
    )


def test_pieces_cover_the_tensors_and_nothing_else(stored):
    piece = module.PIECE_BYTES
    spans = [
        (found.file.name, found.begin // piece, found.end // piece) for found in pieces_of(stored)
    ]
    assert spans == [("a", 0, 1), ("a", 1, 2), ("a", 2, 3), ("b", 0, 1), ("b", 2, 3)]


def test_neighbours_are_read_together(tmp_path):
    tensors = [StoredTensor(tmp_path / "a", "U8", (8,), start, start + 8) for start in (16, 8, 40)]
    assert pieces_of(checkpoint(*tensors)) == [
        Piece(tmp_path / "a", 8, 24),
        Piece(tmp_path / "a", 40, 48),
    ]


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux says what is cached")
def test_ranks_share_out_what_is_missing(stored, monkeypatch):
    read = []
    monkeypatch.setattr(module, "is_cached", lambda piece: piece.file.name == "a")
    monkeypatch.setattr(
        module, "read_piece", lambda piece: read.append(piece) or piece.end - piece.begin
    )
    sizes = [read_ahead(stored, rank, 2) for rank in range(2)]
    assert sizes == [module.PIECE_BYTES] * 2
    assert sorted(read) == [piece for piece in pieces_of(stored) if piece.file.name == "b"]


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux says what is cached")
def test_what_was_just_written_is_cached_and_not_read_again(stored, monkeypatch):
    monkeypatch.setattr(module, "read_piece", lambda piece: pytest.fail("read again"))
    if not all(is_cached(piece) for piece in pieces_of(stored)):
        pytest.skip("this file system keeps nothing in the page cache")
    assert read_ahead(stored) == 0


def test_more_than_memory_holds_is_not_read(stored, monkeypatch):
    monkeypatch.setattr(module, "is_cached", lambda piece: False)
    monkeypatch.setattr(module, "host_memory", lambda: 1000)
    monkeypatch.setattr(module, "read_piece", lambda piece: pytest.fail("read"))
    assert read_ahead(stored) == 0


def test_every_byte_is_read(stored, monkeypatch, caplog):
    monkeypatch.setattr(module, "is_cached", lambda piece: False)
    caplog.set_level("INFO", "tenonry.worker")
    if hasattr(os, "RWF_NOWAIT"):
        assert read_ahead(stored) == 5 * module.PIECE_BYTES
        assert "0.08 of 0.08 GB from 2 files" in caplog.text


def test_a_terminal_gets_one_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress(4 * 10**9, 3)
    for _ in range(4):
        progress.add(10**9)
    progress.end()
    lines = capsys.readouterr().err.split("\r")
    assert len(lines) == 5
    assert "4.00 of 4.00 GB from 3 files" in lines[-1]
    assert lines[-1].endswith("\n")
