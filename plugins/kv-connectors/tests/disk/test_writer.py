"""The thread that writes: limits, errors of the disk, two engines in one directory, an end by SIGKILL."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from tenonry_kv_connectors.disk.folder import BlockFolder
from tenonry_kv_connectors.disk.store import DiskStore
from tenonry_kv_connectors.disk.writer import STALE_S, DiskWriter

MODEL = bytes(8)
SIZE = 1000


def name(number):
    return MODEL + number.to_bytes(20, "big")


def content(number):
    return random.Random(number).randbytes(SIZE)


@pytest.fixture
def store(tmp_path):
    made = []

    def make(limit=1 << 20, staging=1 << 20, root=tmp_path, syncs=False):
        folder = BlockFolder(root, 1)
        writer = DiskWriter(root, folder.rank_name(0), limit, staging, syncs=syncs)
        made.append(DiskStore(folder, 0, "layout", writer))
        return made[-1]

    yield make
    for each in made:
        if each._writer._thread.is_alive():
            each.close()


def files(root):
    return [path for path in root.rglob("*") if path.is_file()]


def test_what_is_written_is_read_at_once_and_by_others(store):
    first = store(syncs=True)
    first.write(name(1), content(1))
    assert first.read(name(1)) == content(1)
    assert not first.wants(name(1))
    first.close()
    assert store().read(name(1)) == content(1)
    assert first.read(name(2)) is None


def test_what_was_used_least_recently_goes(store, tmp_path):
    first = store(limit=10 * SIZE)
    for number in range(6):
        first.write(name(number), content(number))
    first.close()
    second = store(limit=10 * SIZE)
    assert second.read(name(0)) == content(0)
    for number in range(6, 14):
        second.write(name(number), content(number))
    second.close()
    left = [number for number in range(14) if second.read(name(number)) is not None]
    assert left == [0, *range(6, 14)][-len(left) :] or left[0] == 0
    assert {10, 11, 12, 13} <= set(left)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 10 * SIZE
    assert not {1, 2, 3} & set(left)


def test_a_slow_disk_costs_hits_and_no_memory(store, monkeypatch):
    gate = threading.Event()
    write = DiskWriter._write
    monkeypatch.setattr(
        DiskWriter, "_write", lambda self, *args: gate.wait(9) and write(self, *args)
    )
    slow = store(staging=3 * SIZE)
    for number in range(20):
        slow.write(name(number), content(number))
    gate.set()
    slow.close()
    assert [number for number in range(20) if slow.read(name(number))] == [0, 1]


def test_a_folder_among_the_files_is_named_and_nothing_else(store, tmp_path, caplog):
    """It is a miss, and the others are written and trimmed as before."""
    first = store()
    stray = BlockFolder(tmp_path, 1).path(name(1), 0)
    stray.mkdir(parents=True)
    assert first.read(name(1)) is None
    assert not first.wants(name(1))
    first.write(name(2), content(2))
    first.close()
    again = store(limit=1)
    again.close()
    assert stray.is_dir()
    assert f"{stray} is not a file; ignored" in caplog.text
    assert "no more blocks are saved" not in caplog.text


def test_a_full_disk_ends_the_saving_with_one_line(store, monkeypatch, caplog, tmp_path):
    """Reliability, faults 26 and 29."""

    def full(number, mode):
        os.close(number)
        raise OSError(28, "No space left on device")

    full_store = store()
    full_store.write(name(1), content(1))
    while full_store._writer.staged(full_store._folder.path(name(1), 0)):
        time.sleep(0.001)
    monkeypatch.setattr("tenonry_kv_connectors.disk.writer.os.fdopen", full)
    for number in range(2, 6):
        full_store.write(name(number), content(number))
    full_store.close()
    monkeypatch.undo()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "No space left on device; no more blocks are saved" in line
    assert not full_store.wants(name(9))
    assert full_store.read(name(1)) == content(1)
    assert len(files(tmp_path)) == 1


def test_drafts_of_the_dead_are_removed(store, tmp_path):
    folder = tmp_path / MODEL.hex() / "0-of-1" / "00"
    folder.mkdir(parents=True)
    old = folder / "x.part"
    new = folder / "y.part"
    for path in (old, new):
        path.write_bytes(b"x")
    past = time.time() - STALE_S - 1
    os.utime(old, (past, past))
    store().close()
    assert not old.exists()
    assert new.exists()


def test_two_engines_share_a_directory(store, tmp_path):
    """Both write the same blocks, and delete each other's; what is read is right."""
    engines = [store(limit=20 * SIZE) for _ in range(2)]
    wrong = []

    def work(engine, seed):
        chance = random.Random(seed)
        for _ in range(150):
            number = chance.randrange(40)
            found = engine.read(name(number))
            if found is None:
                engine.write(name(number), content(number))
            elif found != content(number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(engine, n)) for n, engine in enumerate(engines)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in engines:
        engine.close()
    assert not wrong
    assert not [path for path in files(tmp_path) if path.suffix == ".part"]
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 22 * SIZE


@pytest.mark.integration
def test_a_killed_engine_leaves_whole_files_or_none(store, tmp_path):
    program = textwrap.dedent("""
        import itertools, random, sys
        from pathlib import Path
        from tenonry_kv_connectors.disk.folder import BlockFolder
        from tenonry_kv_connectors.disk.store import DiskStore
        from tenonry_kv_connectors.disk.writer import DiskWriter
        root = Path(sys.argv[1])
        folder = BlockFolder(root, 1)
        writer = DiskWriter(root, folder.rank_name(0), 1 << 30, 1 << 30, syncs=False)
        store = DiskStore(folder, 0, "layout", writer)
        for number in itertools.count():
            data = random.Random(number).randbytes(1000) * 300
            store.write(bytes(8) + number.to_bytes(20, "big"), data)
            if number == 20:
                print(flush=True)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    later = store(limit=1 << 30)
    found = [later.read(name(number)) for number in range(len(files(tmp_path)))]
    whole = [number for number, data in enumerate(found) if data is not None]
    assert whole
    assert all(found[number] == content(number) * 300 for number in whole)
    assert len(list(tmp_path.rglob("*.block"))) == len(whole)
