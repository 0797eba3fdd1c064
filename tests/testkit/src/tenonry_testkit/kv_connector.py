"""The conformance suite of KV connectors: loaded blocks must equal computed ones. Test process.

    from tenonry_testkit.kv_connector import KVConnectorContract

    class TestMine(KVConnectorContract):
        kv_connector = "my_package:MyConnector"

        def options(self, tmp_path):
            return {"folder": str(tmp_path)}

Both halves live in this process, with an engine's and a worker's role; metadata crosses between them as a message. The
scheduler's side is driven by `tenonry-kvcache`, as in schedulers.

Transfers may run on threads or in other processes: the suite polls for up to `transfer_timeout_s`. It compares the
bytes of every load with those that the fake worker would have computed, in the step in which the load is reported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase

from tenonry.interfaces.kv_connector import KVConnector, KVConnectorContext, KVConnectorRole
from tenonry.request import Request
from tenonry.step import Adapter
from tenonry_kvcache import CONNECTOR_SEED, BlockHasher
from tenonry_testkit.fakes.kv_store import FakeKVStore
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.flags import requires
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.patience import TRANSFER_S, Patience
from tenonry_testkit.scenarios_workers import CachingScheduler
from tenonry_testkit.search import PHASES, search
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.targets import resolve_target
from tenonry_testkit.traffic import Op, Send, play, send, sends, storms


class BlockNames:
    """Digests as `tenonry-kvcache` passes them to a connector, for a scheduler half without a scheduler."""

    def __init__(self, block_size: int) -> None:
        self._hasher = BlockHasher(block_size, CONNECTOR_SEED)

    def __call__(self, request: Request, count: int) -> Sequence[bytes]:
        chain = [self._hasher.seed(request)]
        token_ids = np.ascontiguousarray(request.token_ids, np.int32)
        self._hasher.extend(chain, token_ids.tobytes(), 0, count)
        return chain[1:]


class KVConnectorContract:
    """Subclass in a test module and name the `kv_connector`.

    `brings_hits`: a prompt finished by one engine is found by the next one. `config` are fields of EngineConfig.
    `transfer_timeout_s`: wall-clock limit of a transfer without progress.
    """

    kv_connector: ClassVar[str | type[KVConnector] | None] = None
    config: ClassVar[dict[str, Any]] = {}
    brings_hits: ClassVar[bool] = True
    transfer_timeout_s: ClassVar[float] = TRANSFER_S
    spec: ClassVar[HarnessSpec] = HarnessSpec(num_blocks=24, max_num_batched_tokens=12)
    effort: ClassVar[float] = 1.0
    phases: ClassVar[Sequence[Phase]] = PHASES

    def options(self, tmp_path: Path) -> dict[str, Any]:
        """Options of the connector; its storage must only be shared by connectors with the same options."""
        return {}

    # ------------------------------------------------------------------ tools
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Iterator[None]:
        """Provide a folder below `tmp_path`; connectors are shut down at the end."""
        self._tmp_path = tmp_path
        self.setup_method()
        yield
        self.teardown_method()

    def setup_method(self) -> None:
        """Start a list of connectors to shut down."""
        self._num_folders = 0
        self._built: list[KVConnector] = []
        self._patience = Patience(self.transfer_timeout_s)

    def teardown_method(self) -> None:
        """Shut down connectors that the test built, each half once."""
        while self._built:
            self._built.pop().shutdown()

    def build(
        self, role: KVConnectorRole, folder: Path, spec: HarnessSpec | None = None
    ) -> KVConnector:
        """Build one half; it is shut down at the end of the test."""
        spec = dataclasses.replace(spec or self.spec, config=tuple(self.config.items()))
        config = spec.engine_config()
        cls, options, name = resolve_target(
            "kv_connector", self.kv_connector, self.options(folder), config
        )
        context = KVConnectorContext(
            config,
            fake_model(vocab_size=spec.vocab_size),
            role,
            engine_id=f"{name}_dp0",
            kv_cache=spec.kv_cache(),
            options=options,
        )
        connector: KVConnector = cls(context)
        self._built.append(connector)
        if role is KVConnectorRole.SCHEDULER:
            connector.name_blocks(BlockNames(spec.block_size))
        return connector

    def harness(self, folder: Path, depth: int = 1) -> SchedulerHarness:
        """A fresh engine with both halves."""
        spec = dataclasses.replace(self.spec, depth=depth)
        scheduler_half = self.build(KVConnectorRole.SCHEDULER, folder, spec)
        worker_half = self.build(KVConnectorRole.WORKER, folder, spec)
        return SchedulerHarness(
            CachingScheduler,
            spec,
            connectors=(scheduler_half, worker_half),
            patience=self._patience,
        )

    def folder(self) -> Path:
        """Create a new, empty folder."""
        self._num_folders += 1
        folder = self._tmp_path / str(self._num_folders)
        folder.mkdir()
        return folder

    def _lifetime(self, folder: Path, ops: Sequence[Op], depth: int = 1) -> SchedulerHarness:
        """Run one engine over the storage in `folder`, from its start to its shutdown."""
        harness = self.harness(folder, depth)
        play(harness, ops)
        harness.drain()
        self.teardown_method()
        return harness

    def _two_lifetimes(self, drawn: tuple[int, list[Op]]) -> None:
        """Play (depth, program) in two engines, one after the other, over the same storage."""
        depth, ops = drawn
        folder = self.folder()
        for _ in range(2):
            self._lifetime(folder, ops, depth)

    # ------------------------------------------------------------------ tests
    def test_a_half_that_did_nothing_can_be_shut_down(self) -> None:
        """Both roles."""
        for role in KVConnectorRole:
            self.build(role, self.folder())

    def test_promises_are_whole_blocks_and_leave_the_last_token(self) -> None:
        """`match` never covers a prompt's last token, whatever is stored."""
        folder = self.folder()
        size = self.spec.block_size
        harness = self.harness(folder)
        send(harness, Send(length=4 * size, max_tokens=2))
        harness.drain()
        half = self.build(KVConnectorRole.SCHEDULER, folder)
        for length in range(1, 4 * size + 1):
            entry = harness.add(list(harness.ledger.entries[1].request.token_ids[:length]), 1)
            extra, _ = half.match(entry.request, 0)
            assert extra is None or (extra % size == 0 and 0 <= extra < length), (
                f"match(request, 0) returned {extra} tokens for a prompt of {length}; expected a multiple of the block "
                f"size {size} below {length}, or None to be asked again"
            )
        harness.drain()

    def test_without_metadata_no_block_changes(self) -> None:
        """Most steps have nothing to transfer: `load(None)` and `save(None)` do nothing, `poll` returns no handle."""
        store = FakeKVStore(self.spec.kv_cache())
        worker_half = self.build(KVConnectorRole.WORKER, self.folder())
        worker_half.bind(store)
        before = store.content.copy()
        worker_half.load(None)
        worker_half.save(None)
        changed = np.flatnonzero(store.content != before) // self.spec.block_size
        assert not len(changed), (
            f"load(None) and save(None) wrote to blocks {set(changed.tolist())}"
        )
        done, failed = (list(handles) for handles in worker_half.poll())
        assert not done, f"poll() named {done} as done, but no transfer was asked for"
        assert not failed, f"poll() named {failed} as failed, but no transfer was asked for"

    @requires("brings_hits")
    def test_the_next_engine_finds_what_one_has_finished(self) -> None:
        """A second engine with an empty prefix cache computes less, and the same tokens."""
        folder = self.folder()
        asks = [Send(family=n, length=14, max_tokens=3) for n in range(3)]
        self._lifetime(folder, asks)
        second = self._lifetime(folder, asks)
        missed = [entry for entry in second.ledger.entries.values() if not entry.num_cached]
        assert not missed, (
            f"a second engine over the same storage loaded nothing for {missed}, whose prompts the first one had "
            "finished; match() should promise their whole blocks. If the connector stores none of them, set "
            "brings_hits = False"
        )

    def test_tokens_are_those_of_a_run_without_it(self) -> None:
        """Any traffic, any depth, aborts during transfers; every block is returned."""
        traffic = storms(sends(families=2, max_length=24), aborts=True)
        search(
            st.tuples(st.integers(1, 3), traffic),
            self._two_lifetimes,
            max(1, round(10 * self.effort)),
            self.phases,
        )

    def test_requests_that_may_not_share_do_not(self) -> None:
        """A request with another salt or adapter finds nothing."""
        plain = Send(length=14, max_tokens=2)
        salted = dataclasses.replace(plain, cache_salt="tenant-1")
        adapted = dataclasses.replace(plain, adapter=Adapter("a", "1"))
        for first, seconds in ((plain, (salted, adapted)), (salted, (plain, adapted))):
            folder = self.folder()
            self._lifetime(folder, [first])
            for second in seconds:
                harness = self._lifetime(folder, [second])
                (entry,) = harness.ledger.entries.values()
                assert not entry.num_cached, (
                    f"{second} was given {entry.num_cached} tokens that {first} had stored; what names a block must "
                    "depend on cache_salt and adapter"
                )

    def test_a_reset_forgets(self) -> None:
        """After `reset` returned True, no stored block is found again."""
        folder = self.folder()
        ask = Send(length=14, max_tokens=2)
        harness = self.harness(folder)
        send(harness, ask)
        harness.drain()
        assert harness.connector is not None
        if not harness.connector.reset():
            return
        self.teardown_method()
        (entry,) = self._lifetime(folder, [ask]).ledger.entries.values()
        assert not entry.num_cached, (
            f"reset() returned True, but the next engine was given {entry.num_cached} tokens that had been stored "
            "before; return False if what is stored cannot be forgotten"
        )
