"""What the base class does around the choice: refusing, ending, preempting, counting."""

from __future__ import annotations

import pytest

from tenonry.errors import RequestError
from tenonry.outputs import FinishReason
from tenonry.request import RequestStatus


class TestRefusals:
    def test_a_prompt_beyond_a_step_without_chunked_prefill(self, desk):
        book = desk(budget=8, enable_chunked_prefill=False)
        with pytest.raises(RequestError, match=r"9 tokens.*max_num_batched_tokens=8"):
            book.ask(9)
        assert not book.scheduler.has_requests()

    def test_nothing_left_to_generate(self, desk):
        book = desk()
        with pytest.raises(RequestError, match="6 tokens and may have 6"):
            book.ask(4, 2, output_token_ids=[1, 2])
        with pytest.raises(RequestError, match="32 tokens and may have 32"):
            book.ask(32)

    def test_more_than_the_pool_holds(self, desk):
        book = desk(num_blocks=2)
        assert (
            book.ask(4, 5).status is RequestStatus.WAITING
        )  # nine tokens, of which eight need slots
        with pytest.raises(RequestError, match="grow to 10 tokens, but the KV cache holds 8"):
            book.ask(4, 6)

    def test_an_order_may_refuse_too(self, desk):
        book = desk()

        def order(request):
            raise RequestError("not here")

        book.waiting._order = order
        with pytest.raises(RequestError, match="not here"):
            book.ask(4)
        assert not book.scheduler.has_requests()


class TestEnding:
    def test_wherever_a_request_stands(self, desk):
        book = desk(max_num_seqs=1)
        running, waiting = book.ask(4), book.ask(4)
        output = book.step()
        ended = book.scheduler.finish_requests(
            [waiting.handle, 12345, running.handle], FinishReason.ABORT
        )
        assert ended == [waiting, running]
        assert all(
            request.finish_reason is FinishReason.ABORT and request.is_finished for request in ended
        )
        assert book.scheduler.get_request_counts() == (0, 0)
        assert not book.scheduler.has_unfinished_requests()
        assert book.scheduler.has_requests()  # the workers still hold the row
        assert book.answer(output) == {}
        assert book.step().gone.tolist() == [0]
        assert not book.scheduler.has_requests()

    def test_the_block_manager_sees_all_tokens_and_is_told_once(self, desk):
        book, freed, forgotten = desk(max_num_seqs=2), [], []
        blocks = book.scheduler.blocks
        free = blocks.free
        blocks.free = lambda request, row, **how: (
            freed.append((request.num_tokens, how)) or free(request, row, **how)
        )
        blocks.forget = lambda request: forgotten.append(request.handle)
        ends, aborted, waits = book.ask(4, 2), book.ask(5, 9), book.ask(4)
        book.turn()
        book.turn()
        assert freed == [(6, {"num_known": 5, "drop": False})]
        book.scheduler.finish_requests([waits.handle, aborted.handle], FinishReason.ABORT)
        assert freed[1:] == [(7, {"num_known": 6, "drop": False})]
        assert forgotten == [ends.handle, waits.handle, aborted.handle]

    def test_blocks_on_their_way_are_waited_for(self, desk, monkeypatch):
        book = desk()
        assert not book.scheduler.has_requests()
        monkeypatch.setattr(type(book.scheduler.blocks), "waits", True)
        assert book.scheduler.has_requests()
        assert not book.scheduler.has_unfinished_requests()

    def test_all_at_once(self, desk):
        book = desk()
        requests = [book.ask(4) for _ in range(6)]
        book.step()
        assert book.scheduler.finish_requests(None, FinishReason.ERROR) == requests
        assert book.scheduler.finish_requests(None, FinishReason.ERROR) == []

    def test_the_outcome_counts_preemptions(self, desk):
        book = desk()
        request = book.ask(4, 1)
        book.step()
        book.scheduler.preempt(request)
        (outputs,) = book.turn().values()
        assert outputs.finished[0].num_preemptions == 1


def test_a_preempted_request_keeps_its_place_in_the_queue(desk):
    book = desk(max_num_seqs=1)
    first, second = book.ask(4), book.ask(4)
    book.turn()
    book.scheduler.preempt(first)
    assert list(book.waiting) == [first, second]


def test_resetting_may_preempt_everybody_first(desk):
    book = desk()
    requests = [book.ask(4) for _ in range(2)]
    output = book.step()
    assert not book.scheduler.reset_prefix_cache()
    assert book.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert [request.status for request in requests] == [RequestStatus.PREEMPTED] * 2
    (outputs,) = book.answer(output).values()
    assert len(outputs.handles) == 0
    assert len(book.step().new) == 2


def test_statistics_count_since_the_last_call(desk):
    book = desk(num_blocks=8)
    book.ask(4)
    book.ask(4)
    book.turn()
    book.scheduler.stats_extra["depth"] = 2.0
    stats = book.scheduler.make_stats()
    assert (stats.num_running, stats.num_waiting, stats.num_steps) == (2, 0, 1)
    assert stats.kv_cache_usage == pytest.approx(2 / 8)
    assert stats.extra == {"depth": 2.0}
    assert book.scheduler.make_stats().num_steps == 0


def test_an_empty_step_has_a_number_too(desk):
    book = desk()
    assert [book.step().step_id for _ in range(3)] == [0, 1, 2]
    output = book.step()
    assert (len(output.row), len(output.gone), output.new, output.total_tokens) == (0, 0, [], 0)
