"""The scheduler half of a KV connector, driven by the block manager."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.errors import PluginFault
from tenonry.interfaces.kv_connector import KVConnector, KVConnectorContext
from tenonry.outputs import FinishReason
from tenonry.request import RequestStatus

LONG = list(range(20))


class RecordingConnector(KVConnector):
    """Offers `extra` tokens, and records its calls."""

    def __init__(self) -> None:
        super().__init__(KVConnectorContext(None, None, None, engine_id="x"))
        self.extra: int | None = 8
        self.takes_steps = False
        self.keeps = False
        self.asked: list[int] = []
        self.allocated_blocks: list[tuple[int, list[int], int]] = []
        self.ended: list[int] = []

    def match(self, request, num_computed_tokens):
        self.asked.append(num_computed_tokens)
        return self.extra, self.takes_steps

    def allocated(self, request, block_ids, num_external_tokens):
        self.allocated_blocks.append((request.handle, list(block_ids), num_external_tokens))

    def build_metadata(self):
        return f"step {len(self.allocated_blocks)}"

    def finished(self, request, block_ids):
        self.ended.append(request.handle)
        return self.keeps, {"blocks": len(block_ids)}


@pytest.fixture
def connector() -> RecordingConnector:
    return RecordingConnector()


@pytest.fixture
def driver(make_driver, connector):
    return make_driver(connector=connector)


class TestLoadBeforeTheStep:
    def test_loaded_tokens_count_as_computed(self, driver, connector):
        row, match = driver.enter(driver.request(LONG))
        assert match == (8, True)
        driver.compute(row, 12)
        assert connector.allocated_blocks == []
        assert driver.blocks.connector_metadata() == "step 1"
        assert connector.allocated_blocks == [(1, driver.table(row), 8)]
        assert driver.blocks.connector_metadata() == "step 1"  # each once
        assert driver.blocks.take_counts() == (20, 0)
        assert driver.blocks.take_external_counts() == (20, 8)
        assert not driver.blocks.waits

    def test_it_is_asked_beyond_what_is_cached_here(self, driver, connector):
        connector.extra = 0
        driver.run(LONG[:9])
        driver.enter(driver.request(LONG))
        assert connector.asked == [0, 8]

    def test_never_the_last_token_and_only_whole_blocks(self, driver, connector):
        connector.extra = 99
        assert driver.enter(driver.request(LONG))[1].num_computed == 16
        connector.extra = 7
        assert driver.enter(driver.request([50 + i for i in range(20)]))[1].num_computed == 4

    def test_nothing_is_loaded_where_every_position_has_to_be_computed(self, driver, connector):
        assert driver.enter(driver.request(LONG, prompt_logprobs=0))[1] == (0, True)
        assert connector.asked == []

    def test_ask_later(self, driver, connector):
        connector.extra = None
        row, match = driver.enter(driver.request(LONG))
        assert match is None
        assert driver.table(row) == []

    def test_a_start_that_is_undone_leaves_no_trace(self, driver, connector):
        request = driver.request(LONG)
        row, _ = driver.enter(request)
        driver.blocks.free(request, row, num_known=0)
        driver.blocks.connector_metadata()
        assert connector.allocated_blocks == []
        assert driver.blocks.num_free == driver.blocks.num_total

    def test_without_room_nothing_is_loaded(self, make_driver, connector):
        driver = make_driver(1, connector=connector)
        _, match = driver.enter(driver.request(LONG))
        assert match == (0, True)
        assert driver.blocks.connector_metadata() == "step 0"

    def test_a_failed_load_loses_every_row_that_read_it(self, driver, connector):
        request = driver.request(LONG)
        first, _ = driver.enter(request)
        driver.compute(first, 12)
        connector.extra = 0
        reader, match = driver.enter(driver.request(LONG))
        assert match.num_computed == 16
        bystander, _ = driver.enter(driver.request([90] * 9))
        driver.compute(bystander, 9)
        driver.blocks.connector_metadata()
        assert driver.blocks.transfers([], [request.handle]) == ([], [first, reader])
        driver.leave(first, finished=False, drop=True)
        driver.leave(reader, drop=True)
        connector.extra, connector.asked = 8, []
        again, match = driver.enter(request)
        assert match == (0, True)  # computed here from now on
        assert connector.asked == []
        driver.leave(again)

    def test_a_failed_load_is_forgotten_also_when_its_request_has_left(
        self, make_driver, connector
    ):
        """Another row, and blocks that were computed from it, must not outlive it in the cache."""
        driver = make_driver(connector=connector)
        driver.blocks._transfers._depth = 3
        request = driver.request(LONG)
        loader, _ = driver.enter(request)
        driver.compute(loader, 2)
        driver.blocks.connector_metadata()
        driver.leave(loader)
        connector.extra = 0
        first, match = driver.enter(driver.request(LONG))
        assert match.num_computed == 8
        driver.compute(first, 12)
        driver.leave(first)
        reader, match = driver.enter(driver.request(LONG))
        assert match.num_computed == 16
        driver.blocks.connector_metadata()
        assert driver.blocks.transfers([], [request.handle]) == ([], [reader])
        driver.leave(reader, drop=True)
        assert driver.run(LONG[:9]) == 0
        assert driver.run(LONG) == 8  # what the first reader computed from it is forgotten, too

    def test_a_row_that_waits_for_a_load_may_have_read_a_failed_one(self, driver, connector):
        """Its own load cannot be distinguished from a second one, so there is none."""
        request, waiting = driver.request(LONG[:13]), driver.request(LONG)
        driver.compute(driver.enter(request)[0], 5)
        connector.extra, connector.takes_steps = 4, True
        row, match = driver.enter(waiting)
        assert match == (16, False)
        driver.blocks.connector_metadata()
        assert driver.blocks.transfers([], [request.handle]) == ([], [0, row])
        driver.leave(row, finished=False, drop=True)
        connector.asked = []
        assert driver.enter(waiting)[1].ready
        assert connector.asked == []
        assert driver.blocks.transfers([waiting.handle], []) == ([], [])
        assert not driver.blocks.waits

    def test_rows_that_left_have_read_nothing(self, driver, connector):
        """Hits of a row that left do not count for the next request in it."""
        request = driver.request(LONG)
        driver.compute(driver.enter(request)[0], 12)
        connector.extra = 0
        reader, _ = driver.enter(driver.request(LONG))
        driver.leave(reader)
        assert driver.blocks.transfers([], [request.handle]) == ([], [0])

    def test_when_the_result_has_come_a_load_is_trusted(self, driver, connector):
        request = driver.request(LONG)
        row, _ = driver.enter(request)
        driver.compute(row, 12)
        for _ in range(3):
            driver.blocks.connector_metadata()
        assert driver.blocks.transfers([], [request.handle]) == ([], [])
        assert not driver.blocks._transfers._cached

    def test_a_failed_load_without_prefix_cache(self, make_driver, connector):
        driver = make_driver(connector=connector, enable_prefix_caching=False)
        request = driver.request(LONG)
        row, match = driver.enter(request)
        assert match.num_computed == 8
        driver.compute(row, 12)
        assert driver.blocks.transfers([], [request.handle]) == ([], [row])
        driver.leave(row, finished=False, drop=True)
        assert driver.enter(request)[1].num_computed == 0

    def test_a_load_that_worked_changes_nothing(self, driver):
        request = driver.request(LONG)
        driver.enter(request)
        assert driver.blocks.transfers([request.handle], []) == ([], [])
        assert driver.blocks.transfers([], [777]) == ([], [])


class TestLoadOverSteps:
    @pytest.fixture(autouse=True)
    def _takes_steps(self, connector):
        connector.takes_steps = True

    @pytest.mark.parametrize(("worked", "tokens"), [(True, 12), (False, 4)])
    def test_the_row_waits_and_then_has_what_came(self, driver, connector, worked, tokens):
        connector.extra = 0
        driver.run(LONG[:5])
        connector.extra = 8
        request = driver.request(LONG)
        row, match = driver.enter(request)
        assert match == (12, False)
        assert driver.blocks.waits
        driver.blocks.connector_metadata()
        assert connector.allocated_blocks == [(request.handle, driver.table(row), 8)]
        ended = ([request.handle], []) if worked else ([], [request.handle])
        assert driver.blocks.transfers(*ended) == ([(row, tokens)], [])
        assert not driver.blocks.waits

    def test_blocks_that_are_being_written_are_not_handed_out(self, driver):
        request = driver.request(LONG)
        row, _ = driver.enter(request)
        driver.blocks.connector_metadata()
        driver.rows.num_computed[row] = 0
        driver.leave(row)
        assert driver.blocks.num_free == driver.blocks.num_total - 2
        assert driver.blocks.waits
        assert driver.blocks.transfers([], [request.handle]) == ([], [])
        assert driver.blocks.num_free == driver.blocks.num_total
        assert not driver.blocks.waits

    def test_blocks_of_two_transfers_of_one_request_come_back_after_the_last(
        self, driver, connector
    ):
        """A load that it no longer waited for, and a save at its end: which of them ends first cannot be known."""
        request = driver.request(LONG)
        row, _ = driver.enter(request)
        driver.blocks.connector_metadata()
        driver.rows.num_computed[row] = 0
        driver.leave(row, finished=False)
        connector.extra, connector.keeps = 0, True
        row, _ = driver.enter(request)
        driver.compute(row, 20)
        driver.leave(row)
        assert driver.blocks.num_free == driver.blocks.num_total - 2 - 5
        assert driver.blocks.transfers([request.handle], []) == ([], [])
        assert driver.blocks.num_free == driver.blocks.num_total - 2 - 5
        assert driver.blocks.transfers([], [request.handle]) == ([], [])
        assert driver.blocks.num_free == driver.blocks.num_total
        assert not driver.blocks.waits


class TestTheEnd:
    def test_blocks_are_kept_until_they_were_sent(self, driver, connector):
        connector.extra, connector.keeps = 0, True
        request = driver.request(LONG)
        row, _ = driver.enter(request)
        driver.compute(row, 20)
        assert driver.leave(row) == {"blocks": 5}
        assert driver.blocks.num_free == driver.blocks.num_total - 5
        assert driver.blocks.waits
        assert driver.blocks.transfers([request.handle], []) == ([], [])
        assert driver.blocks.num_free == driver.blocks.num_total
        assert not driver.blocks.waits

    def test_a_preempted_request_did_not_end(self, driver, connector):
        connector.extra = 0
        row, _ = driver.enter(driver.request(LONG))
        driver.compute(row, 20)
        assert driver.leave(row, finished=False) is None
        assert connector.ended == []

    def test_the_connector_sees_the_tokens_and_the_outcome(self, driver, connector):
        seen = []
        connector.finished = lambda request, ids: (
            seen.append((request.num_tokens, request.finish_reason)) or (False, None)
        )
        connector.extra = 0
        request = driver.request(LONG)
        row, _ = driver.enter(request)
        driver.compute(row, 20)
        driver.append(row, 5)
        driver.leave(row)
        assert seen == [(21, FinishReason.LENGTH)]
        assert request.status is RequestStatus.FINISHED

    @pytest.mark.parametrize(
        ("computed", "drop", "full"), [(20, False, 5), (19, False, 4), (3, False, 0), (20, True, 0)]
    )
    def test_the_connector_gets_the_blocks_that_are_full(
        self, driver, connector, computed, drop, full
    ):
        """Blocks for the whole prompt are allocated from the start; blocks not yet computed must not be saved."""
        connector.extra = 0
        row, _ = driver.enter(driver.request(LONG))
        driver.blocks.grow(np.array([row]), np.array([20], np.int32))
        driver.compute(row, computed)
        assert driver.leave(row, drop=drop) == {"blocks": full}


class TestBlocksThatNeverComeBack:
    """The limit is `kv_transfer_timeout`, 300 s by default."""

    def keep(self, driver, connector, tokens):
        connector.extra, connector.keeps = 0, True
        request = driver.request(tokens)
        row, _ = driver.enter(request)
        driver.compute(row, len(tokens))
        driver.leave(row)
        return request

    def steps(self, driver, seconds):
        for _ in range(seconds):
            driver.now += 1.0
            driver.blocks.connector_metadata()

    def test_its_connector_is_named_and_left_out_until_they_do(self, driver, connector, caplog):
        kept = self.keep(driver, connector, LONG)
        self.steps(driver, 300)
        connector.asked = []
        row, _ = driver.enter(driver.request(LONG))
        assert connector.asked == []
        assert "RecordingConnector' (" in caplog.text
        assert "keeps 5 blocks for more than 300 s" in caplog.text
        assert driver.leave(row) is None
        assert connector.ended == [kept.handle]
        driver.blocks.transfers([kept.handle], [])
        self.keep(driver, connector, LONG)
        driver.enter(driver.request(LONG))
        assert connector.asked

    def test_before_the_limit_it_is_asked(self, driver, connector):
        self.keep(driver, connector, LONG)
        self.steps(driver, 299)
        driver.now += (
            3600.0  # an hour in which the process stood still is none in which they could come back
        )
        connector.asked = []
        driver.enter(driver.request(LONG))
        assert len(connector.asked) == 1

    def test_where_requests_would_wait_without_end_the_engine_ends(self, make_driver, connector):
        driver = make_driver(18, connector=connector)  # a longest sequence has 16 blocks
        self.keep(driver, connector, LONG)
        self.steps(driver, 300)
        with pytest.raises(PluginFault, match=r"TimeoutError: it keeps 5 of 18 KV blocks"):
            driver.enter(driver.request(LONG))


class TestAbortsBeforeTheResult:
    """A load that the aborted step relied on may still fail, and no later result would report its saved blocks."""

    def test_the_request_that_loaded_saves_nothing(self, driver, connector):
        row, _ = driver.enter(driver.request(LONG))
        driver.compute(row, 12)
        driver.blocks.connector_metadata()
        assert driver.leave(row, reason=FinishReason.ABORT) == {"blocks": 0}

    def test_one_that_found_its_blocks_in_the_cache_saves_nothing(self, driver, connector):
        loader, _ = driver.enter(driver.request(LONG))
        driver.compute(loader, 12)
        connector.extra = 0
        reader, match = driver.enter(driver.request([*LONG, 77, 78, 79, 80, 81]))
        assert match.num_computed == 20
        driver.compute(reader, 5)
        driver.blocks.connector_metadata()
        driver.leave(loader, reason=FinishReason.ABORT)
        assert driver.leave(reader, reason=FinishReason.ABORT) == {"blocks": 0}

    def test_others_save_theirs(self, driver, connector):
        driver.compute(driver.enter(driver.request(LONG))[0], 12)
        connector.extra = 0
        other, _ = driver.enter(driver.request([90] * 9))
        driver.compute(other, 9)
        driver.blocks.connector_metadata()
        assert driver.leave(other, reason=FinishReason.ABORT) == {"blocks": 2}

    def test_one_that_ended_by_itself_had_its_result(self, driver, connector):
        row, _ = driver.enter(driver.request(LONG))
        driver.compute(row, 12)
        driver.blocks.connector_metadata()
        assert driver.leave(row) == {"blocks": 5}

    def test_when_the_result_has_come_it_saves_all(self, driver, connector):
        row, _ = driver.enter(driver.request(LONG))
        driver.compute(row, 12)
        for _ in range(3):
            driver.blocks.connector_metadata()
        assert driver.leave(row, reason=FinishReason.ABORT) == {"blocks": 5}


def test_without_a_connector_nothing_is_sent(make_driver):
    driver = make_driver()
    row, _ = driver.enter(driver.request(LONG))
    assert driver.blocks.connector_metadata() is None
    assert driver.blocks.transfers([1], [2]) == ([], [])
    driver.compute(row, 20)
    assert driver.leave(row) is None
    assert isinstance(driver.blocks.table(row), tuple)
    assert np.array_equal(driver.blocks.table(row)[0], np.empty(0, np.int32))


@pytest.mark.parametrize("call", ["match", "allocated", "build_metadata", "finished"])
def test_what_a_connector_raises_names_it_and_not_the_scheduler(driver, connector, call):
    def clumsy(*_):
        raise KeyError("block")

    def live():
        driver.run(LONG[:9])
        driver.enter(driver.request(LONG))
        driver.blocks.connector_metadata()

    setattr(connector, call, clumsy)
    with pytest.raises(
        PluginFault,
        match=rf"plugin RecordingConnector \(no distribution\) failed in {call}: KeyError: 'block' \(",
    ):
        live()
