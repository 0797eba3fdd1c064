"""The KV connector suite over a correct connector with a thread of its own, and over ones with one defect each."""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase

from tenonry.interfaces.plugin import PluginOptions
from tenonry_testkit.fakes import MemoryConnector
from tenonry_testkit.kv_connector import KVConnectorContract
from tenonry_testkit.outcomes import failing_tests


class DiskOptions(PluginOptions):
    """`folder` holds a file per block."""

    folder: str


class DiskConnector(MemoryConnector):
    """Blocks are files; a thread of the worker half reads and writes them while the engine continues."""

    Options = DiskOptions

    def __init__(self, context):
        super().__init__(context)
        self.folder = Path(context.options.folder)
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.transfers: list[tuple[int, Future]] = []

    # ------------------------------------------------------------------ scheduler half
    def match(self, request, num_computed_tokens):
        hashes = self._hashes(request)
        first = num_computed_tokens // self._block_size
        last = first
        usable = (request.num_tokens - 1) // self._block_size
        while last < usable and self._path(hashes[last]).exists():
            last += 1
        self._matched[request.handle] = first
        extra = (last - first) * self._block_size
        return extra, extra > 0

    def finished(self, request, block_ids):
        num_full = request.num_prompt_tokens // self._block_size
        pairs = zip(self._hashes(request)[:num_full], block_ids, strict=False)
        missing = [[name, int(block)] for name, block in pairs if not self._path(name).exists()]
        if missing:
            self._saves.append([request.handle, missing])
        return bool(missing), None

    def reset(self):
        for path in self.folder.iterdir():
            path.unlink()
        return True

    # ------------------------------------------------------------------ worker half
    def load(self, metadata):
        for handle, pairs in (metadata or {}).get("load", []):
            self.start(handle, self.read_files, pairs)

    def save(self, metadata):
        for handle, pairs in (metadata or {}).get("save", []):
            self.start(handle, self.write_files, pairs)

    def start(self, handle, transfer, pairs):
        self.transfers.append((handle, self.thread.submit(transfer, pairs)))

    def poll(self):
        ended = [(handle, future) for handle, future in self.transfers if future.done()]
        self.transfers = [entry for entry in self.transfers if entry not in ended]
        failed = [handle for handle, future in ended if future.exception() is not None]
        return [handle for handle, _ in ended if handle not in failed], failed

    def shutdown(self):
        self.thread.shutdown()

    # ------------------------------------------------------------------ in the thread
    def read_files(self, pairs):
        data = [self._path(name).read_bytes() for name, _ in pairs]
        self._blocks.write([block for _, block in pairs], data)

    def write_files(self, pairs):
        contents = self._blocks.read([block for _, block in pairs])
        for (name, _), data in zip(pairs, contents, strict=True):
            part = self._path(name).with_suffix(".part")
            part.write_bytes(data)
            part.rename(self._path(name))

    def _path(self, name: str) -> Path:
        return self.folder / name


class TestDisk(KVConnectorContract):
    kv_connector = DiskConnector

    def options(self, tmp_path):
        return {"folder": str(tmp_path)}


class SlowDisk(DiskConnector):
    """A transfer takes longer than the harness polls without a pause."""

    def start(self, handle, transfer, pairs):
        def slowly(pairs):
            threading.Event().wait(0.03)
            transfer(pairs)

        super().start(handle, slowly, pairs)


class TestSlowDisk(TestDisk):
    kv_connector = SlowDisk
    effort = 0.3


class TestMemory(KVConnectorContract):
    kv_connector = MemoryConnector

    def options(self, tmp_path):
        return {"store": str(tmp_path)}


class TestMemoryLater(TestMemory):
    def options(self, tmp_path):
        return {"store": str(tmp_path), "asynchronous": True, "fail_loads": 1}

    brings_hits = False


# -------------------------------------------------------------------------------------------------- one defect each
NEXT_ENGINE = "test_the_next_engine_finds_what_one_has_finished"
TRAFFIC = "test_tokens_are_those_of_a_run_without_it"


class ForgetsLoads(DiskConnector):
    caught_by = NEXT_ENGINE
    message = (
        r"nothing has moved for 0\.\d s \(wall clock\); match\(\) promised tokens 0 to 11 of request-1 \(handle 1\) in "
        r"a later step and allocated\(\) gave it blocks \[.*\]; poll\(\) has not named handle 1 in \d+ calls since"
    )

    def poll(self):
        loads = {handle for handle, pairs in self.loads}
        done, failed = super().poll()
        return [handle for handle in done if handle not in loads], failed

    def load(self, metadata):
        self.loads = (metadata or {}).get("load", []) + getattr(self, "loads", [])
        super().load(metadata)


class ForgetsSaves(DiskConnector):
    caught_by = "test_a_reset_forgets"
    message = r"finished\(\) returned True for request-1 \(handle 1\), so blocks \[.*\] are kept; poll\(\) has not"

    def poll(self):
        super().poll()
        return (), ()


class ThreadDies(DiskConnector):
    """Only futures without an exception are looked at, and the folder is somewhere else."""

    caught_by = "test_a_reset_forgets"
    message = r"nothing has moved for .* finished\(\) returned True"

    def write_files(self, pairs):
        raise OSError("no space left on device")

    def poll(self):
        done, _ = super().poll()
        return done, ()


class ReportsBeforeItHasWritten(SlowDisk):
    caught_by = NEXT_ENGINE
    message = (
        r"poll\(\) named handle 1 as done, but block \d+ does not hold the K/V of tokens 0 to 3 of request-1: it "
        r"holds what it held before the load"
    )

    def poll(self):
        started = [handle for handle, _ in self.transfers]
        self.transfers.clear()
        return started, ()


class MixesUpBlocks(DiskConnector):
    caught_by = NEXT_ENGINE
    message = (
        r"poll\(\) named handle 1 as done, but block \d+ does not hold .*: it holds other bytes"
    )

    def read_files(self, pairs):
        blocks = [block for _, block in pairs]
        super().read_files(
            [[name, block] for (name, _), block in zip(pairs, blocks[::-1], strict=True)]
        )


class LoadsOneBlockLess(DiskConnector):
    caught_by = NEXT_ENGINE
    message = r"does not hold the K/V of tokens 8 to 11 of request-1: it holds what it held before the load"

    def read_files(self, pairs):
        super().read_files(pairs[:-1])


class ReadsBlocksThatAreNotKept(DiskConnector):
    caught_by = "test_a_reset_forgets"
    message = r"read\(\) of blocks \[.*\], which belong to no running request .* finished\(\) must return True"

    def finished(self, request, block_ids):
        super().finished(request, block_ids)
        return False, None

    def save(self, metadata):
        for _, pairs in (metadata or {}).get("save", []):
            self.write_files(pairs)


class NamesRequestsByTheirId(DiskConnector):
    caught_by = "test_a_reset_forgets"
    message = r"poll\(\) named 'request-1' as done, but no transfer of that handle is under way; .* any of \[1\]"

    def poll(self):
        done, failed = super().poll()
        return [f"request-{handle}" for handle in done], failed


class ReportsTwice(DiskConnector):
    caught_by = "test_a_reset_forgets"
    message = r"poll\(\) named 1 as done, but no transfer of that handle is under way; it may name each once"

    def poll(self):
        done, failed = super().poll()
        return [*done, *done], failed


class WritesElsewhere(DiskConnector):
    """Three loads of three blocks take 0 to 8, so that no block it writes is another load's, however fast each is."""

    caught_by = NEXT_ENGINE
    message = (
        r"write\(\) to blocks \[.*\], which no load under way was given; those that were: \[0, 1,"
    )

    def read_files(self, pairs):
        super().read_files([[name, (block + 9) % 24] for name, block in pairs])


class LosesAFailure(DiskConnector):
    """A file that is gone is no failure for it."""

    caught_by = NEXT_ENGINE
    message = (
        r"poll\(\) named handle 1 as done, but block \d+ does not hold .* it held before the load"
    )

    def read_files(self, pairs):
        for name, _ in pairs:
            self._path(name).unlink()
        super().read_files(pairs)

    def poll(self):
        done, failed = super().poll()
        return [*done, *failed], []


class KeepsOnlyTheLastBlockOfAName(DiskConnector):
    """Names of eight bits: another prompt's block comes under the same one."""

    caught_by = TRAFFIC
    message = r"does not hold the K/V of tokens"

    def _hashes(self, request):
        return [name[:1] for name in super()._hashes(request)]


class LosesADelayedLoad(MemoryConnector):
    """A load that is under way when another begins is dropped."""

    caught_by = TRAFFIC
    message = r"poll\(\) has not named handle|does not hold the K/V"

    def load(self, metadata):
        if (metadata or {}).get("load"):
            self._transfers.clear()
        self.options = self.options.model_copy(update={"asynchronous": True})
        super().load(metadata)

    def match(self, request, num_computed_tokens):
        extra, _ = super().match(request, num_computed_tokens)
        return extra, bool(extra)


class NeverAnswers(DiskConnector):
    caught_by = "test_a_reset_forgets"
    message = r"match\(\) has answered None \(ask again later\) \d+ times in a row for request-1 \(handle 1\)"

    def match(self, request, num_computed_tokens):
        return None, False


class KeepsNothing(DiskConnector):
    caught_by = NEXT_ENGINE
    message = r"loaded nothing for \[request request-1 .* set brings_hits = False"

    def finished(self, request, block_ids):
        return False, None


class ForgetsToForget(DiskConnector):
    caught_by = "test_a_reset_forgets"
    message = r"reset\(\) returned True, but the next engine was given 12 tokens"

    def reset(self):
        return True


class WritesWithoutBeingAsked(DiskConnector):
    caught_by = "test_without_metadata_no_block_changes"
    message = r"load\(None\) and save\(None\) wrote to blocks \{2\}"

    def load(self, metadata):
        self._blocks.write([2], [b"\1" * 32])


class PromisesTooMuch(MemoryConnector):
    caught_by = "test_promises_are_whole_blocks_and_leave_the_last_token"
    message = r"match\(request, 0\) returned 5 tokens for a prompt of 5; expected a multiple of the block size"

    def match(self, request, num_computed_tokens):
        extra, later = super().match(request, num_computed_tokens)
        return (extra + 1 if extra else 0), later


class LoadsLateWithoutSaying(MemoryConnector):
    """Its loads take two steps, and `match` reports them as immediate."""

    caught_by = NEXT_ENGINE
    message = (
        r"load\(\) returned, but block \d+ does not hold the K/V of tokens 0 to 3 of request-1"
    )

    def load(self, metadata):
        for job in (metadata or {}).get("load", []):
            self._transfers.append((2, job, False))


class ForgetsSalts(MemoryConnector):
    caught_by = "test_requests_that_may_not_share_do_not"
    message = (
        r"Send\(length=14, max_tokens=2, cache_salt='tenant-1'\) was given 12 tokens that Send\("
    )

    def _hashes(self, request):
        request.source = msgspec.structs.replace(request.source, cache_salt=None, adapter=None)
        return super()._hashes(request)


class HashesNothing(MemoryConnector):
    caught_by = TRAFFIC
    message = r"load\(\) returned, but block \d+ does not hold the K/V"

    def _hashes(self, request):
        return [str(number) for number in range(request.num_tokens // self._block_size)]


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.slow
@pytest.mark.broken("kv_connector")
def test_defect_is_found_by_the_test_that_names_it(broken, tmp_path):
    base = TestDisk if issubclass(broken, DiskConnector) else TestMemory
    fields = {
        "kv_connector": broken,
        "_tmp_path": tmp_path,
        "transfer_timeout_s": 0.3,
        "phases": (Phase.generate,),
    }
    suite = type("Suite", (base,), fields)
    failures = failing_tests(suite, [broken.caught_by])
    assert isinstance(failures.get(broken.caught_by), AssertionError)
    assert re.search(broken.message, str(failures[broken.caught_by]), re.DOTALL)


def test_a_transfer_is_given_as_long_as_the_suite_says(tmp_path):
    fields = {"kv_connector": ForgetsSaves, "_tmp_path": tmp_path, "transfer_timeout_s": 0.2}
    failures = failing_tests(type("Suite", (TestDisk,), fields), ["test_a_reset_forgets"])
    assert "nothing has moved for 0.2 s" in str(failures["test_a_reset_forgets"])
