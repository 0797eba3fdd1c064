"""A log has whole frames, whatever became of the process that wrote before."""

from __future__ import annotations

import errno
import resource
import signal

import msgspec
import pytest

from tenonry.errors import ConfigError
from tenonry_decisions.frames import FORMAT, pack, unpack
from tenonry_decisions.sinks import FrameFile


@pytest.mark.parametrize("kept", [2, 5, 9, 100, -1])
def test_a_truncated_frame_is_removed_before_the_next(busy, tmp_path, kept):
    path = tmp_path / "log"
    path.write_bytes(pack(busy.header) + pack(busy.chunks[0])[:kept])
    FrameFile(path).append(busy.header)
    assert list(unpack(path.read_bytes())) == [busy.header, busy.header]


def test_a_frame_that_another_process_truncated_is_removed(busy, tmp_path):
    path = tmp_path / "log"
    file = FrameFile(path)
    file.append(busy.header)
    with path.open("ab") as other:
        other.write(pack(busy.header) + pack(busy.chunks[0])[:50])
    file.append(busy.chunks[0])
    assert list(unpack(path.read_bytes())) == [busy.header, busy.header, busy.chunks[0]]


def test_a_partial_write_is_an_error_and_leaves_whole_frames(busy, tmp_path):
    path = tmp_path / "log"
    file = FrameFile(path)
    file.append(busy.header)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left") as raised:
            file.append(busy.chunks[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert raised.value.errno == errno.ENOSPC
    assert list(unpack(path.read_bytes())) == [busy.header]


def test_a_log_of_another_format_is_refused_and_kept(busy, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(pack(msgspec.structs.replace(busy.header, format=FORMAT - 1)))
    before = path.read_bytes()
    with pytest.raises(
        ConfigError, match=f"decision records of format {FORMAT - 1}; .* another file"
    ):
        FrameFile(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["a note", "not a log, and longer than a prefix"])
def test_a_file_of_anything_else_is_refused_and_kept(tmp_path, text):
    path = tmp_path / "notes"
    path.write_text(text)
    with pytest.raises(
        ConfigError, match=f"decision_log={path}: invalid decision record at byte 0;"
    ):
        FrameFile(path)
    assert path.read_text() == text
