"""The thread of one rank: order, failures that are told, and what happens when it ends."""

from __future__ import annotations

import threading
import time

import pytest

from tenonry_kv_connectors.stores.mover import BLOCKS_AT_ONCE, Mover


class Blocks:
    """Block i holds byte i."""

    layout = "test"

    def __init__(self):
        self.tensors = {}
        self.content = {block: bytes([block]) for block in range(100)}

    def read(self, block_ids):
        return [self.content[block] for block in block_ids]

    def write(self, block_ids, data):
        self.content.update(zip(block_ids, data, strict=True))


class Store:
    def __init__(self):
        self.kept = {}
        self.log = []
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()

    def wants(self, name):
        return name not in self.kept

    def read(self, name):
        self.gate.wait(9)
        return self.kept.get(name)

    def write(self, name, data):
        self.gate.wait(9)
        if name == b"bad":
            raise OSError("no room")
        self.log.append(name)
        self.kept[name] = data

    def follow(self, orders):
        for name in orders:
            self.kept.pop(name, None)

    def close(self):
        self.closed = True


@pytest.fixture
def parts():
    blocks = Blocks()
    store = Store()
    mover = Mover(blocks, store, "test")
    yield mover, blocks, store
    if not store.closed:
        store.gate.set()
        mover.close()


def all_of(mover, count):
    done = []
    failed = []
    end = time.monotonic() + 9
    while len(done) + len(failed) < count and time.monotonic() < end:
        more_done, more_failed = mover.ended()
        done += more_done
        failed += more_failed
    return done, failed


def test_jobs_are_done_in_order(parts):
    mover, blocks, store = parts
    mover.save(1, [[b"a", 1], [b"b", 2]])
    mover.load(2, [[b"a", 11], [b"b", 12]])
    mover.follow([b"b"])
    mover.load(3, [[b"a", 21], [b"b", 22]])
    assert all_of(mover, 3) == ([1, 2], [3])
    assert (blocks.content[11], blocks.content[12]) == (b"\1", b"\2")
    assert blocks.content[22] == bytes([22])
    assert store.log == [b"b", b"a"]  # a block is of no use without those before it


def test_many_blocks_go_in_parts_and_known_ones_are_left_out(parts):
    mover, _, store = parts
    count = 2 * BLOCKS_AT_ONCE + 3
    store.kept[b"0"] = b"known"
    mover.save(1, [[b"%d" % number, number] for number in range(count)])
    assert all_of(mover, 1) == ([1], [])
    assert len(store.log) == count - 1
    assert store.kept[b"0"] == b"known"


def test_a_save_that_fails_is_named_and_the_thread_goes_on(parts, caplog):
    mover, _, _ = parts
    mover.save(1, [[b"bad", 1]])
    mover.save(2, [[b"a", 1]])
    assert all_of(mover, 2) == ([2], [1])
    assert "a save failed" in caplog.text


def test_what_is_lost_is_one_line_in_the_log(parts, caplog):
    mover, _, _ = parts
    for handle in range(5):
        mover.load(handle, [[b"gone", 1]])
    assert all_of(mover, 5) == ([], list(range(5)))
    assert len(caplog.records) == 1


def test_the_step_does_not_wait_and_the_end_finishes_saves_only(parts):
    mover, blocks, store = parts
    store.gate.clear()
    store.kept[b"x"] = b"x"
    mover.save(1, [[b"a", 1]])
    mover.load(2, [[b"x", 50]])
    assert mover.ended() == ([], [])
    closing = threading.Thread(target=mover.close)
    closing.start()
    while not mover._closing:
        time.sleep(0.001)
    store.gate.set()
    closing.join(9)
    assert store.closed
    assert store.kept[b"a"] == b"\1"
    assert blocks.content[50] == bytes([50])
    assert mover.ended() == ([1], [2])
    assert not mover._thread.is_alive()
