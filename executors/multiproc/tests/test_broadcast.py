"""The ring of slots, with readers in this process."""

from __future__ import annotations

import os
import select

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tenonry.errors import TenonryError, WireError
from tenonry_executor_multiproc import broadcast
from tenonry_executor_multiproc.broadcast import (
    READ_BYTES,
    SharedBroadcast,
    SocketBroadcast,
    open_reader,
)
from tenonry_executor_multiproc.packets import pack, unpack


class Blocked(Exception):
    pass


def never(fd, event):
    raise Blocked


@pytest.fixture
def ring():
    opened = []

    def make(num_ranks, num_slots):
        opened.append(SharedBroadcast(num_ranks, num_slots))
        return opened[-1], [open_reader(opened[-1].address(rank)[0]) for rank in range(num_ranks)]

    yield make
    for one in opened:
        one.close()


@given(st.data())
def test_every_rank_reads_every_packet_in_order(data):
    """Whatever the sizes, and however far the ranks lag; the writer waits exactly when a rank has no slot left."""
    num_ranks, num_slots = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    writer = SharedBroadcast(num_ranks, num_slots)
    try:
        readers = [open_reader(writer.address(rank)[0]) for rank in range(num_ranks)]
        sent, finished = 0, [0] * num_ranks
        for _ in range(data.draw(st.integers(1, 20))):
            rank = data.draw(st.integers(-1, num_ranks - 1))
            if rank >= 0 and finished[rank] < sent:
                packet = unpack(readers[rank].receive())
                assert packet.sequence == finished[rank]
                assert set(bytes(packet.frames[0])) <= {finished[rank] % 256}
                readers[rank].finish()
                finished[rank] += 1
            elif sent - min(finished) < num_slots:
                size = data.draw(st.sampled_from([0, 1, 100, READ_BYTES, 3 * READ_BYTES + 5]))
                writer.send(pack(1, sent, [bytes([sent % 256]) * size]), never)
                sent += 1
            else:
                with pytest.raises(Blocked):
                    writer.send(pack(1, sent, [b""]), never)
            assert writer.behind() == [rank for rank in range(num_ranks) if finished[rank] < sent]
    finally:
        writer.close()


def test_a_slow_rank_is_waited_for(ring):
    writer, (fast, slow) = ring(2, 1)
    writer.send(pack(1, 0, [b"a"]), never)
    for reader in (fast, slow):
        reader.receive()
    fast.finish()
    waits = []

    def wait(fd, event):
        waits.append(event)
        slow.finish()

    writer.send(pack(1, 1, [b"b"]), wait)
    assert waits == [select.POLLIN]
    assert bytes(unpack(slow.receive()).frames[0]) == b"b"


def test_memory_is_taken_only_for_what_was_written(ring):
    writer, (reader,) = ring(1, 8)
    big = bytes(3 << 20)
    for _ in range(2):
        writer.send(pack(1, 0, [big]), never)
        assert bytes(unpack(reader.receive()).frames[0]) == big
        reader.finish()
    assert 512 * os.fstat(writer._memory).st_blocks < 8 << 20


def test_full_memory_is_an_error_of_the_sender(ring, monkeypatch):
    writer, _ = ring(1, 2)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(TenonryError, match=r"no shared memory for a message of .*No space left"):
        writer.send(pack(1, 0, [b"a"]), never)


def test_what_is_larger_than_a_slot_is_refused(ring, monkeypatch):
    writer, _ = ring(1, 2)
    monkeypatch.setattr(broadcast, "SLOT_BYTES", 100)
    with pytest.raises(WireError, match="larger than 100"):
        writer.send(pack(1, 0, [bytes(200)]), never)


def test_sockets_carry_the_same_and_end_with_the_engine():
    writer = SocketBroadcast(1)
    address, (fd,) = writer.address(0)
    reader = open_reader(address.replace(str(fd), str(os.dup(fd))))
    writer.handed_down(0)
    for number in range(3):
        writer.send(pack(1, number, [bytes(number)]), never)
    assert [unpack(reader.receive()).sequence for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Blocked):
        writer.send(pack(1, 3, [bytes(10 << 20)]), never)
    writer.close()
    with pytest.raises(EOFError):
        reader.receive()
    reader._socket.close()


def test_a_dead_rank_stops_no_one_else_from_hearing():
    writer = SocketBroadcast(2)
    address, (fd,) = writer.address(1)
    reader = open_reader(address.replace(str(fd), str(os.dup(fd))))
    for rank in range(2):
        writer.handed_down(rank)
    writer.send(pack(1, 7, [b"x"]), never)
    assert unpack(reader.receive()).sequence == 7
    reader._socket.close()
    writer.close()
