"""The conformance suite of KV connectors: what it brings must be what would have been computed. Test process.

    from tenonry_testkit.kv_connector import KVConnectorContract

    class TestMine(KVConnectorContract):
        kv_connector = "my_package:MyConnector"

        def options(self, tmp_path):
            return {"folder": str(tmp_path)}

Both halves live in this process, with an engine's and a worker's role; metadata crosses between them as a message. The
scheduler's side is driven by `tenonry-kvcache`, as it is in every scheduler that uses it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import Phase

from tenonry.interfaces.kv_connector import KVConnector, KVConnectorContext, KVConnectorRole
from tenonry_testkit.fakes.kv_store import FakeKVStore
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.search import PHASES, search
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.targets import resolve_target
from tenonry_testkit.traffic import Op, Send, play, send, sends, storms
from tenonry_testkit.worker import CachingScheduler


class KVConnectorContract:
    """Subclass in a test module and name the `kv_connector`.

    `brings_hits`: a prompt that one engine has finished is found by the next one. `config` are fields of EngineConfig.
    """

    kv_connector: ClassVar[str | type[KVConnector] | None] = None
    config: ClassVar[dict[str, Any]] = {}
    brings_hits: ClassVar[bool] = True
    spec: ClassVar[HarnessSpec] = HarnessSpec(num_blocks=24, max_num_batched_tokens=12)
    effort: ClassVar[float] = 1.0
    phases: ClassVar[Sequence[Phase]] = PHASES

    def options(self, tmp_path: Path) -> dict[str, Any]:
        """The connector's options; whatever it stores should be found only by connectors with the same ones."""
        return {}

    # ------------------------------------------------------------------ tools
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Any:
        """Start a list of what is to be shut down."""
        self._tmp_path, self._count = tmp_path, 0
        self._built: list[KVConnector] = []
        yield
        self._shut_down()

    def _shut_down(self) -> None:
        while self._built:
            self._built.pop().shutdown()

    def build(
        self, role: KVConnectorRole, folder: Path, spec: HarnessSpec | None = None
    ) -> KVConnector:
        """One half; it is shut down at the end of the test."""
        cls, options, name = resolve_target("kv_connector", self.kv_connector, self.options(folder))
        spec = dataclasses.replace(spec or self.spec, config=tuple(self.config.items()))
        context = KVConnectorContext(
            spec.engine_config(),
            fake_model(vocab_size=spec.vocab_size),
            role,
            engine_id=f"{name}_dp0",
            kv_cache=spec.kv_cache(),
            options=options,
        )
        connector: KVConnector = cls(context)
        self._built.append(connector)
        return connector

    def harness(self, folder: Path, depth: int = 1) -> SchedulerHarness:
        """A fresh engine with both halves."""
        spec = dataclasses.replace(self.spec, depth=depth)
        halves = [
            self.build(role, folder, spec)
            for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER)
        ]
        return SchedulerHarness(CachingScheduler, spec, connectors=(halves[0], halves[1]))

    def folder(self) -> Path:
        """A new, empty one."""
        self._count += 1
        folder = self._tmp_path / str(self._count)
        folder.mkdir()
        return folder

    def _lifetimes(self, depth: int, ops: list[Op], count: int = 2) -> list[SchedulerHarness]:
        """So many engines, one after the other, over the same storage."""
        folder, harnesses = self.folder(), []
        for _ in range(count):
            harness = self.harness(folder, depth)
            play(harness, ops)
            harness.drain()
            self._shut_down()
            harnesses.append(harness)
        return harnesses

    # ------------------------------------------------------------------ tests
    def test_a_half_that_did_nothing_can_be_shut_down(self) -> None:
        """Both roles."""
        for role in KVConnectorRole:
            self.build(role, self.folder())

    def test_promises_are_whole_blocks_and_leave_the_last_token(self) -> None:
        """`match` never covers a prompt's last token, whatever is stored."""
        folder, size = self.folder(), self.spec.block_size
        harness = self.harness(folder)
        send(harness, Send(length=4 * size, max_tokens=2))
        harness.drain()
        fresh = self.build(KVConnectorRole.SCHEDULER, folder)
        for length in range(1, 4 * size + 1):
            entry = harness.add(list(harness.ledger.entries[1].request.token_ids[:length]), 1)
            extra, _ = fresh.match(entry.request, 0)
            assert extra is None or (extra % size == 0 and 0 <= extra < length), (
                f"{extra} of {length} tokens"
            )
        harness.drain()

    def test_what_is_written_is_read(self) -> None:
        """The worker's blocks are copied as they are: the fake store finds every wrong byte."""
        store = FakeKVStore(self.spec.kv_cache())
        worker = self.build(KVConnectorRole.WORKER, self.folder())
        worker.bind(store)
        before = store.content.copy()
        worker.load(None)
        worker.save(None)
        assert (store.content == before).all(), "without metadata no block changes"
        assert [list(handles) for handles in worker.poll()] == [[], []]

    def test_the_next_engine_finds_what_one_has_finished(self) -> None:
        """A second engine with an empty prefix cache computes less, and the same tokens."""
        asks: list[Op] = [Send(family=n, length=14, max_tokens=3) for n in range(3)]
        _, second = self._lifetimes(1, asks)
        cached = [entry.num_cached for entry in second.ledger.entries.values()]
        assert not self.brings_hits or all(cached), f"cached tokens per request: {cached}"

    def test_tokens_are_those_of_a_run_without_it(self) -> None:
        """Any traffic, any depth, aborts while blocks are on their way; and every block comes back."""
        program = st.tuples(
            st.integers(1, 3), storms(sends(families=2, max_length=24), aborts=True)
        )
        search(
            program,
            lambda drawn: self._lifetimes(*drawn),
            max(1, round(10 * self.effort)),
            self.phases,
        )

    def test_requests_that_may_not_share_do_not(self) -> None:
        """Another tenant's salt and another adapter find nothing."""
        folder = self.folder()
        plain = Send(length=14, max_tokens=2)
        others = [
            dataclasses.replace(plain, cache_salt="tenant-1"),
            dataclasses.replace(plain, adapter="a"),
        ]
        for first, second in ((plain, others), (others[0], [plain, others[1]])):
            harness = self.harness(folder)
            send(harness, first)
            harness.drain()
            self._shut_down()
            for other in second:
                harness = self.harness(folder)
                entry = send(harness, other)
                harness.drain()
                self._shut_down()
                assert not entry.num_cached, f"{other} found what {first} left"
            folder = self.folder()

    def test_a_reset_forgets(self) -> None:
        """When `reset` says True, nothing that was stored is found again."""
        folder = self.folder()
        ask = Send(length=14, max_tokens=2)
        harness = self.harness(folder)
        send(harness, ask)
        harness.drain()
        assert harness.connector is not None
        if harness.connector.reset():
            self._shut_down()
            again = self.harness(folder)
            entry = send(again, ask)
            again.drain()
            assert not entry.num_cached
