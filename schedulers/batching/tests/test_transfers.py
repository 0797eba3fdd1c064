"""Requests whose KV is on another engine, and transfers that never arrive."""

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
    """Connector whose transfers end when the test releases them."""

    is_stuck = False

    def poll(self):
        return ((), ()) if self.is_stuck else super().poll()


class StuckHarness(SchedulerHarness):
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
def harness() -> StuckHarness:
    return StuckHarness()


def test_a_load_that_does_not_end_is_not_waited_for_for_ever(harness, caplog):
    entry = harness.add(PROMPT)
    harness.wait(TIMEOUT_S - 1)
    assert harness.scheduler.get_request_counts() == (0, 1)
    harness.wait(2)
    harness.run(entry)
    assert "1 loads of KV have not ended within 50 s" in caplog.text
    assert harness.scheduler.blocks.num_free == harness.scheduler.blocks.num_total - 3, (
        "the load may still write to them"
    )
    assert not harness.scheduler.has_requests(), "an engine without requests rests"
    harness.halves[1].is_stuck = False
    harness.add([50, 51], 2)
    harness.drain()  # and finds every block free


def test_a_save_that_does_not_end_keeps_its_blocks_and_no_engine_awake(harness):
    entry = harness.add([60 - i for i in range(13)])
    harness.run(entry)
    free = harness.scheduler.blocks.num_free
    assert free < harness.scheduler.blocks.num_total
    assert harness.scheduler.has_requests()
    harness.wait(TIMEOUT_S + 1)
    assert not harness.scheduler.has_requests()
    assert harness.scheduler.blocks.num_free == free
    harness.halves[1].is_stuck = False
    harness.add([50, 51], 2)
    harness.drain()


def test_an_aborted_load_keeps_its_blocks(harness):
    entry = harness.add(PROMPT)
    harness.wait(1)
    harness.abort([entry.handle])
    harness.wait(TIMEOUT_S)
    assert not harness.scheduler.has_requests()
    assert harness.scheduler.blocks.num_free == harness.scheduler.blocks.num_total - 3
    harness.halves[1].is_stuck = False
    harness.add([50, 51], 2)
    harness.drain()
