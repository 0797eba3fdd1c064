"""Requests whose KV another engine has: what happens when it never comes."""

from __future__ import annotations

import pytest

from tenonry.interfaces.kv_connector import KVConnectorContext, KVConnectorRole
from tenonry_scheduler_batching.scheduler import BatchingOptions, BatchingScheduler
from tenonry_testkit.fakes.connector import STORES, MemoryConnector, MemoryOptions
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.harness import HarnessSpec, SchedulerHarness

PROMPT = list(range(1, 14))
TIMEOUT_S = 50.0


class StuckConnector(MemoryConnector):
    """Its transfers end when the test says so."""

    is_stuck = False

    def poll(self):
        return ((), ()) if self.is_stuck else super().poll()


class StuckRig(SchedulerHarness):
    """The first request's prompt is in the store, and in no block; from then on transfers are stuck."""

    def __init__(self) -> None:
        STORES.pop("stuck", None)
        spec = HarnessSpec(num_blocks=24)
        options = MemoryOptions(store="stuck", asynchronous=True, delay_polls=0)
        self.halves = tuple(
            StuckConnector(
                KVConnectorContext(
                    spec.engine_config(),
                    fake_model(),
                    role,
                    engine_id="e",
                    kv_cache=spec.kv_cache(),
                    options=options,
                )
            )
            for role in KVConnectorRole
        )
        super().__init__(
            BatchingScheduler,
            spec,
            connectors=self.halves,
            options=BatchingOptions(kv_transfer_timeout=TIMEOUT_S),
        )
        self.add(PROMPT)
        self.drain()
        assert self.reset_prefix_cache()
        self.halves[1].is_stuck = True

    def wait(self, seconds: float) -> None:
        """The engine turns for so long."""
        for _ in range(10):
            self.turn()
            self.clock.advance(seconds / 10)

    def run(self, entry) -> None:
        for _ in range(40):
            self.turn()
        assert not entry.is_live


@pytest.fixture
def rig() -> StuckRig:
    return StuckRig()


def test_a_load_that_does_not_end_is_not_waited_for_for_ever(rig, caplog):
    entry = rig.add(PROMPT)
    rig.wait(TIMEOUT_S - 1)
    assert rig.scheduler.get_request_counts() == (0, 1)
    rig.wait(2)
    rig.run(entry)
    assert "1 loads of KV have not ended within 50 s" in caplog.text
    assert rig.scheduler.blocks.num_free == rig.scheduler.blocks.num_total - 3, (
        "somebody may still write to them"
    )
    assert not rig.scheduler.has_requests(), "an engine without requests rests"
    rig.halves[1].is_stuck = False
    rig.add([50, 51], 2)
    rig.drain()  # and finds every block free


def test_a_save_that_does_not_end_keeps_its_blocks_and_no_engine_awake(rig):
    entry = rig.add([60 - i for i in range(13)])
    rig.run(entry)
    free = rig.scheduler.blocks.num_free
    assert free < rig.scheduler.blocks.num_total
    assert rig.scheduler.has_requests()
    rig.wait(TIMEOUT_S + 1)
    assert not rig.scheduler.has_requests()
    assert rig.scheduler.blocks.num_free == free
    rig.halves[1].is_stuck = False
    rig.add([50, 51], 2)
    rig.drain()


def test_an_aborted_load_keeps_its_blocks(rig):
    entry = rig.add(PROMPT)
    rig.wait(1)
    rig.abort([entry.handle])
    rig.wait(TIMEOUT_S)
    assert not rig.scheduler.has_requests()
    assert rig.scheduler.blocks.num_free == rig.scheduler.blocks.num_total - 3
    rig.halves[1].is_stuck = False
    rig.add([50, 51], 2)
    rig.drain()
