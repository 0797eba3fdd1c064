"""The scheduler half of a KV connector, driven by the block manager."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.errors import PluginFault
from tenonry.interfaces.kv_connector import KVConnector, KVConnectorContext
from tenonry.outputs import FinishReason
from tenonry.request import RequestStatus

LONG = list(range(20))


class Shelf(KVConnector):
    """Offers `extra` tokens, and writes down what it is told."""

    def __init__(self) -> None:
        super().__init__(KVConnectorContext(None, None, None, engine_id="x"))
        self.extra: int | None = 8
        self.takes_steps = False
        self.keeps = False
        self.asked: list[int] = []
        self.told: list[tuple[int, list[int], int]] = []
        self.ended: list[int] = []

    def match(self, request, num_computed_tokens):
        self.asked.append(num_computed_tokens)
        return self.extra, self.takes_steps

    def allocated(self, request, block_ids, num_external_tokens):
        self.told.append((request.handle, list(block_ids), num_external_tokens))

    def build_metadata(self):
        return f"step {len(self.told)}"

    def finished(self, request, block_ids):
        self.ended.append(request.handle)
        return self.keeps, {"blocks": len(block_ids)}


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def home(house, shelf):
    return house(connector=shelf)


class TestLoadBeforeTheStep:
    def test_loaded_tokens_count_as_computed(self, home, shelf):
        row, match = home.enter(home.request(LONG))
        assert match == (8, True)
        home.compute(row, 12)
        assert shelf.told == []
        assert home.blocks.connector_metadata() == "step 1"
        assert shelf.told == [(1, home.table(row), 8)]
        assert home.blocks.connector_metadata() == "step 1"  # told once
        assert home.blocks.take_counts() == (20, 8)
        assert not home.blocks.waits

    def test_it_is_asked_beyond_what_is_cached_here(self, home, shelf):
        shelf.extra = 0
        home.run(LONG[:9])
        home.enter(home.request(LONG))
        assert shelf.asked == [0, 8]

    def test_never_the_last_token_and_only_whole_blocks(self, home, shelf):
        shelf.extra = 99
        assert home.enter(home.request(LONG))[1].num_computed == 16
        shelf.extra = 7
        assert home.enter(home.request([50 + i for i in range(20)]))[1].num_computed == 4

    def test_nothing_is_loaded_for_who_wants_every_position_computed(self, home, shelf):
        assert home.enter(home.request(LONG, prompt_logprobs=0))[1] == (0, True)
        assert shelf.asked == []

    def test_ask_later(self, home, shelf):
        shelf.extra = None
        row, match = home.enter(home.request(LONG))
        assert match is None
        assert home.table(row) == []

    def test_a_start_that_is_undone_leaves_no_trace(self, home, shelf):
        request = home.request(LONG)
        row, _ = home.enter(request)
        home.blocks.free(request, row, num_known=0)
        home.blocks.connector_metadata()
        assert shelf.told == []
        assert home.blocks.num_free == home.blocks.num_total

    def test_without_room_nothing_is_loaded(self, house, shelf):
        home = house(1, connector=shelf)
        _, match = home.enter(home.request(LONG))
        assert match == (0, True)
        assert home.blocks.connector_metadata() == "step 0"

    def test_a_failed_load_loses_everybody_who_read_it(self, home, shelf):
        request = home.request(LONG)
        first, _ = home.enter(request)
        home.compute(first, 12)
        shelf.extra = 0
        reader, match = home.enter(home.request(LONG))
        assert match.num_computed == 16
        bystander, _ = home.enter(home.request([90] * 9))
        home.compute(bystander, 9)
        home.blocks.connector_metadata()
        assert home.blocks.transfers([], [request.handle]) == ([], [first, reader])
        home.leave(first, finished=False, drop=True)
        home.leave(reader, drop=True)
        shelf.extra, shelf.asked = 8, []
        again, match = home.enter(request)
        assert match == (0, True)  # computed here from now on
        assert shelf.asked == []
        home.leave(again)

    def test_a_failed_load_is_forgotten_also_when_its_request_has_left(self, house, shelf):
        """Another row, and blocks that were computed from it, must not outlive it in the cache."""
        home = house(connector=shelf)
        home.blocks._transfers._depth = 3
        request = home.request(LONG)
        loader, _ = home.enter(request)
        home.compute(loader, 2)
        home.blocks.connector_metadata()
        home.leave(loader)
        shelf.extra = 0
        first, match = home.enter(home.request(LONG))
        assert match.num_computed == 8
        home.compute(first, 12)
        home.leave(first)
        reader, match = home.enter(home.request(LONG))
        assert match.num_computed == 16
        home.blocks.connector_metadata()
        assert home.blocks.transfers([], [request.handle]) == ([], [reader])
        home.leave(reader, drop=True)
        assert home.run(LONG[:9]) == 0
        assert home.run(LONG) == 8  # what the first reader computed from it is forgotten, too

    def test_a_row_that_waits_for_a_load_may_have_read_a_failed_one(self, home, shelf):
        """Its own load cannot be told from a second one, so there will be none."""
        request, waiting = home.request(LONG[:13]), home.request(LONG)
        home.compute(home.enter(request)[0], 5)
        shelf.extra, shelf.takes_steps = 4, True
        row, match = home.enter(waiting)
        assert match == (16, False)
        home.blocks.connector_metadata()
        assert home.blocks.transfers([], [request.handle]) == ([], [0, row])
        home.leave(row, finished=False, drop=True)
        shelf.asked = []
        assert home.enter(waiting)[1].ready
        assert shelf.asked == []
        assert home.blocks.transfers([waiting.handle], []) == ([], [])
        assert not home.blocks.waits

    def test_rows_that_left_have_read_nothing(self, home, shelf):
        """What a row had found before it left says nothing about who comes into it."""
        request = home.request(LONG)
        home.compute(home.enter(request)[0], 12)
        shelf.extra = 0
        reader, _ = home.enter(home.request(LONG))
        home.leave(reader)
        assert home.blocks.transfers([], [request.handle]) == ([], [0])

    def test_when_the_result_has_come_a_load_is_trusted(self, home, shelf):
        request = home.request(LONG)
        row, _ = home.enter(request)
        home.compute(row, 12)
        for _ in range(3):
            home.blocks.connector_metadata()
        assert home.blocks.transfers([], [request.handle]) == ([], [])
        assert not home.blocks._transfers._cached

    def test_a_failed_load_without_prefix_cache(self, house, shelf):
        home = house(connector=shelf, enable_prefix_caching=False)
        request = home.request(LONG)
        row, match = home.enter(request)
        assert match.num_computed == 8
        home.compute(row, 12)
        assert home.blocks.transfers([], [request.handle]) == ([], [row])
        home.leave(row, finished=False, drop=True)
        assert home.enter(request)[1].num_computed == 0

    def test_a_load_that_worked_needs_no_word(self, home):
        request = home.request(LONG)
        home.enter(request)
        assert home.blocks.transfers([request.handle], []) == ([], [])
        assert home.blocks.transfers([], [777]) == ([], [])


class TestLoadOverSteps:
    @pytest.fixture(autouse=True)
    def _takes_steps(self, shelf):
        shelf.takes_steps = True

    @pytest.mark.parametrize(("worked", "tokens"), [(True, 12), (False, 4)])
    def test_the_row_waits_and_then_has_what_came(self, home, shelf, worked, tokens):
        shelf.extra = 0
        home.run(LONG[:5])
        shelf.extra = 8
        request = home.request(LONG)
        row, match = home.enter(request)
        assert match == (12, False)
        assert home.blocks.waits
        home.blocks.connector_metadata()
        assert shelf.told == [(request.handle, home.table(row), 8)]
        ended = ([request.handle], []) if worked else ([], [request.handle])
        assert home.blocks.transfers(*ended) == ([(row, tokens)], [])
        assert not home.blocks.waits

    def test_blocks_that_are_being_written_are_not_handed_out(self, home):
        request = home.request(LONG)
        row, _ = home.enter(request)
        home.blocks.connector_metadata()
        home.rows.num_computed[row] = 0
        home.leave(row)
        assert home.blocks.num_free == home.blocks.num_total - 2
        assert home.blocks.waits
        assert home.blocks.transfers([], [request.handle]) == ([], [])
        assert home.blocks.num_free == home.blocks.num_total
        assert not home.blocks.waits

    def test_blocks_of_two_transfers_of_one_request_come_back_after_the_last(self, home, shelf):
        """A load that it no longer waited for, and a save at its end: whose word comes first cannot be told."""
        request = home.request(LONG)
        row, _ = home.enter(request)
        home.blocks.connector_metadata()
        home.rows.num_computed[row] = 0
        home.leave(row, finished=False)
        shelf.extra, shelf.keeps = 0, True
        row, _ = home.enter(request)
        home.compute(row, 20)
        home.leave(row)
        assert home.blocks.num_free == home.blocks.num_total - 2 - 5
        assert home.blocks.transfers([request.handle], []) == ([], [])
        assert home.blocks.num_free == home.blocks.num_total - 2 - 5
        assert home.blocks.transfers([], [request.handle]) == ([], [])
        assert home.blocks.num_free == home.blocks.num_total
        assert not home.blocks.waits


class TestTheEnd:
    def test_blocks_are_kept_until_they_were_sent(self, home, shelf):
        shelf.extra, shelf.keeps = 0, True
        request = home.request(LONG)
        row, _ = home.enter(request)
        home.compute(row, 20)
        assert home.leave(row) == {"blocks": 5}
        assert home.blocks.num_free == home.blocks.num_total - 5
        assert home.blocks.waits
        assert home.blocks.transfers([request.handle], []) == ([], [])
        assert home.blocks.num_free == home.blocks.num_total
        assert not home.blocks.waits

    def test_a_preempted_request_did_not_end(self, home, shelf):
        shelf.extra = 0
        row, _ = home.enter(home.request(LONG))
        home.compute(row, 20)
        assert home.leave(row, finished=False) is None
        assert shelf.ended == []

    def test_the_connector_sees_the_tokens_and_the_outcome(self, home, shelf):
        seen = []
        shelf.finished = lambda request, ids: (
            seen.append((request.num_tokens, request.finish_reason)) or (False, None)
        )
        shelf.extra = 0
        request = home.request(LONG)
        row, _ = home.enter(request)
        home.compute(row, 20)
        home.append(row, 5)
        home.leave(row)
        assert seen == [(21, FinishReason.LENGTH)]
        assert request.status is RequestStatus.FINISHED

    @pytest.mark.parametrize(
        ("computed", "drop", "full"), [(20, False, 5), (19, False, 4), (3, False, 0), (20, True, 0)]
    )
    def test_the_connector_gets_the_blocks_that_are_full(self, home, shelf, computed, drop, full):
        """Blocks for the whole prompt are there from the start; what is not computed must not be saved."""
        shelf.extra = 0
        row, _ = home.enter(home.request(LONG))
        home.blocks.grow(np.array([row]), np.array([20], np.int32))
        home.compute(row, computed)
        assert home.leave(row, drop=drop) == {"blocks": full}


def test_without_a_connector_nothing_is_sent(house):
    home = house()
    row, _ = home.enter(home.request(LONG))
    assert home.blocks.connector_metadata() is None
    assert home.blocks.transfers([1], [2]) == ([], [])
    home.compute(row, 20)
    assert home.leave(row) is None
    assert isinstance(home.blocks.table(row), tuple)
    assert np.array_equal(home.blocks.table(row)[0], np.empty(0, np.int32))


@pytest.mark.parametrize("call", ["match", "allocated", "build_metadata", "finished"])
def test_what_a_connector_raises_names_it_and_not_the_scheduler(home, shelf, call):
    def clumsy(*_):
        raise KeyError("block")

    def live():
        home.run(LONG[:9])
        home.enter(home.request(LONG))
        home.blocks.connector_metadata()

    setattr(shelf, call, clumsy)
    with pytest.raises(
        PluginFault,
        match=rf"plugin Shelf \(no distribution\) failed in {call}: KeyError: 'block' \(",
    ):
        live()
