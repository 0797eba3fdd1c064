"""Whose the directory may be, and what a reset leaves in it."""

from __future__ import annotations

import pytest

from tenonry.errors import ConfigError
from tenonry_kv_connectors.disk.folder import BlockFolder, open_private
from tenonry_kv_connectors.disk.index import DiskIndex

IDENTITY = bytes(range(16))


def test_a_directory_is_made_for_this_user_alone(tmp_path):
    path = open_private(tmp_path / "a" / "b")
    assert path.stat().st_mode & 0o777 == 0o700
    assert open_private(path) == path


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_one_that_others_can_write_to_is_refused(tmp_path, mode):
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(ConfigError, match=r"can be written by others.*chmod 700"):
        open_private(path)


def test_one_that_others_can_replace_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="who could replace"):
        open_private(tmp_path / "mine")
    tmp_path.chmod(0o1777)  # as /tmp
    open_private(tmp_path / "mine")


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be used"):
        open_private(tmp_path / "file")


def test_a_block_is_there_when_every_rank_has_it(tmp_path):
    folder = BlockFolder(tmp_path, num_ranks=2)
    index = DiskIndex(folder, IDENTITY)
    for rank in range(2):
        assert not index.has(b"digest")
        path = folder.path(index.name(b"digest"), rank)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    assert index.has(b"digest")


def test_engines_of_one_identity_agree_on_names_until_one_is_reset(tmp_path):
    folder = BlockFolder(tmp_path, num_ranks=1)
    first = DiskIndex(folder, IDENTITY)
    second = DiskIndex(folder, IDENTITY)
    other = DiskIndex(folder, IDENTITY[::-1])
    assert first.name(b"digest") == second.name(b"digest") != other.name(b"digest")
    before = second.name(b"digest")
    kept = folder.path(other.name(b"digest"), 0)
    for path in (folder.path(before, 0), kept):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    assert first.reset()
    assert not folder.path(before, 0).exists()
    assert kept.exists()
    # Neither the engine with what may be other weights, nor one that starts, uses names of before or of each other.
    names = {index.name(b"digest") for index in (first, second, DiskIndex(folder, IDENTITY))}
    assert len(names) == 3


@pytest.mark.parametrize("at", ["epoch", "model"])
def test_something_else_in_the_place_of_the_epoch_is_a_miss_and_a_line(tmp_path, caplog, at):
    folder = BlockFolder(tmp_path, num_ranks=1)
    model = tmp_path / IDENTITY[:8].hex()
    if at == "epoch":
        (model / "epoch" / "stray").mkdir(parents=True)
    else:
        model.write_text("x")
    index = DiskIndex(folder, IDENTITY)
    assert not index.has(b"digest")
    assert str(model) in caplog.text
    assert "blocks of earlier runs cannot be used" in caplog.text
    assert index.reset()
    assert not index.has(b"digest")


def test_a_folder_in_the_place_of_a_block_is_a_miss(tmp_path):
    folder = BlockFolder(tmp_path, num_ranks=1)
    index = DiskIndex(folder, IDENTITY)
    folder.path(index.name(b"digest"), 0).mkdir(parents=True)
    assert not index.has(b"digest")
