"""The format: frames survive a file, and what is no record is refused by name."""

from __future__ import annotations

import msgspec
import pytest

from tenonry_decisions.frames import FORMAT, pack, runs, unpack


def test_frames_come_back_as_they_were_written(busy):
    data = b"".join(map(pack, [busy.header, *busy.chunks]))
    assert list(unpack(data)) == [busy.header, *busy.chunks]


def test_a_last_frame_that_is_cut_off_is_ignored(busy):
    data = b"".join(map(pack, [busy.header, *busy.chunks]))
    for cut in (1, 3, 100):
        assert list(unpack(data[:-cut])) == [busy.header, *busy.chunks[:-1]]


def test_other_files_are_refused():
    with pytest.raises(ValueError, match="invalid decision record at byte 0"):
        list(unpack(b"\x02\x00\x00\x00{}"))


def test_another_format_is_refused(busy):
    header = msgspec.structs.replace(busy.header, format=FORMAT + 1)
    with pytest.raises(ValueError, match=f"format {FORMAT + 1}; this reads format {FORMAT}"):
        list(unpack(pack(header)))


def test_chunks_without_a_header_are_refused(busy):
    with pytest.raises(ValueError, match="the start of the file is missing"):
        runs(busy.chunks)


def test_interleaved_runs_keep_their_chunks(busy):
    first, second = (
        [msgspec.structs.replace(frame, run=run) for frame in (busy.header, *busy.chunks)]
        for run in (1, 2)
    )
    mixed = [first[0], first[1], second[0], *first[2:], *second[1:]]
    found = runs(mixed)
    assert [[header, *chunks] for header, chunks in found] == [first, second]


def test_a_second_start_in_one_file_is_a_run_of_its_own(busy):
    found = runs([busy.header, *busy.chunks, busy.header, *busy.chunks])
    assert [chunks for _, chunks in found] == [busy.chunks, busy.chunks]
