"""What `choose` may say, and what becomes of it on the wire."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.outputs import FinishReason
from tenonry.request import RequestStatus
from tenonry_scheduling import Match
from tenonry_scheduling.blocks import Transferred


def nothing(step):
    """A step that schedules nothing."""


def run_everything(step):
    """What an ordinary scheduler does."""
    step.run_ready()
    for request in step.waiting:
        if not step.run(request) and step.full:
            break


class TestStarting:
    def test_a_waiting_request_gets_a_row_and_blocks_for_all_its_tokens(self, desk):
        book = desk(budget=6)
        request = book.ask(10)
        output = book.step()
        (new,) = output.new
        assert (new.row, new.handle, new.num_computed, new.num_output) == (
            request.row,
            request.handle,
            0,
            0,
        )
        assert new.token_ids.tolist() == request.token_ids.tolist()
        assert [len(ids) for ids in new.block_ids] == [3]
        assert (output.row.tolist(), output.num_tokens.tolist(), output.samples.tolist()) == (
            [new.row],
            [6],
            [False],
        )
        assert output.total_tokens == 6
        assert request.status is RequestStatus.RUNNING

    def test_part_of_it_when_asked(self, desk):
        book = desk()
        request = book.ask(10)
        output = book.step(lambda step: step.run(request, 3))
        assert output.num_tokens.tolist() == [3]
        assert book.step(lambda step: step.run_ready()).num_tokens.tolist() == [7]

    def test_nothing_changes_without_blocks(self, desk):
        book = desk(num_blocks=3, max_model_len=12)
        first, second = book.ask(5), book.ask(6)
        told = []
        output = book.step(
            lambda step: told.extend([step.run(first), step.full, step.run(second), step.full])
        )
        assert told == [True, False, False, True]
        assert len(output.new) == 1
        assert second.row == -1
        assert second in book.waiting
        assert book.rows.num_free == 3
        assert book.scheduler.blocks.num_free == 1

    def test_nothing_changes_without_rows_or_budget(self, desk):
        book = desk(max_num_seqs=1)
        requests = [book.ask(4), book.ask(4)]
        told = []
        book.step(
            lambda step: told.extend([step.run(request) for request in requests] + [step.full])
        )
        assert told == [True, False, True]
        book = desk(budget=4)
        requests = [book.ask(4), book.ask(4)]
        told = []
        book.step(
            lambda step: told.extend([step.run(request) for request in requests] + [step.full])
        )
        assert told == [True, False, True]

    def test_requests_that_do_not_wait_do_not_start(self, desk):
        book = desk()
        request = book.ask(4)
        stranger = book.request(4)
        told = []
        book.step(
            lambda step: told.extend(
                [step.run(request), step.run(request), step.run(stranger), step.full]
            )
        )
        assert told == [True, False, False, False]

    def test_a_row_runs_once_per_step(self, desk):
        book = desk()
        request = book.ask(10)
        told = []
        output = book.step(
            lambda step: told.extend([step.run(request, 3), step.run(request, 3), step.run_ready()])
        )
        assert told == [True, False, False]
        assert output.row.tolist() == [request.row]

    def test_without_chunked_prefill_a_prompt_is_not_split(self, desk):
        book = desk(budget=8, enable_chunked_prefill=False)
        first, second = book.ask(5), book.ask(6)
        told = []
        book.step(lambda step: told.extend([step.run(first), step.run(second), step.full]))
        assert told == [True, False, True]
        assert book.step(lambda step: step.run(second)).num_tokens.tolist() == [6]

    def test_what_outgrew_a_whole_step_is_split_even_without_chunked_prefill(self, desk):
        """A preempted request may have more tokens than a step holds; it must be able to come back."""
        book = desk(budget=6, enable_chunked_prefill=False)
        request = book.ask(5, 9)
        for _ in range(4):
            book.turn()
        book.scheduler.preempt(request)
        sizes = [book.step().num_tokens.tolist() for _ in range(2)]
        assert sizes == [[6], [3]]


class TestRunningRows:
    def start(self, book, *lengths, **fields):
        requests = [book.ask(length, 8, **fields) for length in lengths]
        book.turn()
        return requests

    def test_decoding_sends_the_token_just_sampled(self, desk):
        book = desk()
        first, second = self.start(book, 4, 5)
        book.answer(book.step(nothing))
        output = book.step(lambda step: step.run_ready())
        assert output.row.tolist() == [first.row, second.row]
        assert output.num_tokens.tolist() == [1, 1]
        assert output.next_token.tolist() == [9, 9]
        assert output.samples.tolist() == [True, True]
        assert output.generation.tolist() == book.rows.generation[output.row].tolist()
        for column in (
            output.row,
            output.num_tokens,
            output.next_token,
            output.generation,
            output.new_block_row,
        ):
            assert column.dtype == np.int32

    def test_with_a_step_in_flight_the_worker_knows_the_token(self, desk):
        book = desk(depth=2)
        book.ask(4, 8)
        first = book.step()
        second = book.step(lambda step: step.run_ready())
        assert second.next_token.tolist() == [-1]
        assert book.rows.pending.tolist() == [2, 0, 0, 0]
        book.answer(first)
        assert book.step(lambda step: step.run_ready()).next_token.tolist() == [-1]

    def test_only_known_tokens_are_offered_to_the_prefix_cache(self, desk):
        book, offered = desk(depth=3), []
        book.scheduler.blocks.register = lambda rows, known: offered.append(known.tolist())
        book.ask(4, 8)
        first = book.step()
        book.step()
        book.answer(first)
        book.step()
        assert offered == [[4], [4], [5]]

    def test_a_row_at_its_limit_waits_for_the_result(self, desk):
        book = desk(depth=3)
        book.ask(4, 2)
        outputs = [book.step(), book.step(), book.step()]
        assert [len(output.row) for output in outputs] == [1, 1, 0]

    def test_without_feedback_a_row_waits_for_its_token_but_a_prompt_goes_on(self, desk):
        book = desk(depth=3, feeds_back=False, budget=8)
        short, long = book.ask(4, 8), book.ask(12, 8)
        first, second, third = book.step(), book.step(), book.step()
        assert dict(zip(first.row.tolist(), first.num_tokens.tolist(), strict=True)) == {
            short.row: 4,
            long.row: 4,
        }
        assert dict(zip(second.row.tolist(), second.num_tokens.tolist(), strict=True)) == {
            long.row: 8
        }
        assert third.row.tolist() == []
        book.answer(first)
        assert book.step().next_token.tolist() == [9]

    def test_new_blocks_come_when_they_are_needed(self, desk):
        book = desk(groups=2)
        (request,) = self.start(book, 4)
        output = book.step()
        assert output.new_block_row.tolist() == [request.row] * 2
        assert sorted(output.new_block_group.tolist()) == [0, 1]
        book.answer(output)
        assert len(book.step().new_block_row) == 0

    def test_run_rows_takes_all_or_none(self, desk):
        book = desk(budget=6)
        requests = self.start(book, 2, 2)
        rows, before = book.rows, book.rows.num_computed.copy()
        told = []
        late = book.ask(9)

        def choose(step):
            wanted = np.array([request.row for request in requests])
            told.append(step.run(late, 5))
            told.append(step.run_rows(wanted, np.array([1, 1])))
            told.append(step.tokens_left)
            told.append(step.run_rows(wanted[:1], np.array([1])))

        output = book.step(choose)
        assert told == [True, False, 1, True]
        assert sorted(output.row.tolist()) == [requests[0].row, late.row]
        assert rows.num_computed[requests[1].row] == before[requests[1].row]

    def test_decodes_come_first_and_the_last_gets_a_part(self, desk):
        book = desk(budget=8)
        long = book.ask(20, 4)
        book.turn()
        short = book.ask(2, 4)
        book.answer(book.step(lambda step: step.run(short)))
        output = book.step(lambda step: step.run_ready())
        assert output.row.tolist() == [short.row, long.row]
        assert output.num_tokens.tolist() == [1, 7]

    def test_a_bound_on_each_row(self, desk):
        book = desk(budget=16)
        for _ in range(2):
            book.ask(10)
        book.step(lambda step: [step.run(request, 1) for request in list(step.waiting)])
        assert book.step(lambda step: step.run_ready(3)).num_tokens.tolist() == [3, 3]

    def test_ready_leaves_out_what_the_step_runs_already(self, desk):
        book = desk()
        first, second = self.start(book, 4, 4)
        seen = []
        book.step(
            lambda step: (step.run(second), seen.extend(step.ready.tolist()), step.run_ready())
        )
        assert seen == [first.row]


class TestPreemption:
    def crowd(self, desk, **fields):
        """Two requests of three blocks each, which fill the pool."""
        book = desk(num_blocks=6, max_model_len=20, **fields)
        requests = [book.ask(8, 9) for _ in range(2)]
        book.turn()
        for _ in range(4):
            book.turn()
        assert book.scheduler.blocks.num_free == 0
        return book, *requests

    def test_the_victim_goes_back_with_its_tokens(self, desk):
        book, first, second = self.crowd(desk)
        row = second.row
        output = book.step()
        assert output.row.tolist() == [first.row]
        assert output.gone.tolist() == [row]
        assert output.new == []
        assert second.status is RequestStatus.PREEMPTED
        assert second.num_preemptions == 1
        assert second.token_ids.tolist() == [*range(100, 108), 9, 9, 9, 9, 9]
        assert second in book.waiting
        assert book.scheduler.make_stats().num_preemptions == 1

    def test_it_comes_back_with_all_its_tokens_as_output(self, desk):
        book, first, second = self.crowd(desk)
        while not first.is_finished:
            book.turn()
        (new,) = book.step().new
        assert new.handle == second.handle
        assert (len(new.token_ids), new.num_output) == (13, 5)

    def test_the_scheduler_chooses_the_victim(self, desk):
        book, first, second = self.crowd(desk)
        asked = []
        book.scheduler.victim = lambda running: asked.append(list(running)) or running[0]
        output = book.step(lambda step: step.run_ready())
        assert asked == [[first, second]]
        assert output.row.tolist() == [second.row]

    def test_the_last_one_is_spared(self, desk):
        book, first, second = self.crowd(desk)
        told = []
        book.step(lambda step: (step.preempt(first), told.append(step.run_ready())))
        assert told == [True]
        assert second.row >= 0

    def test_only_what_runs_and_was_not_scheduled_can_be_preempted(self, desk):
        book = desk()
        first, second = book.ask(4), book.ask(4)
        book.turn()
        waits = book.ask(4)

        def choose(step):
            step.run(first)
            with pytest.raises(ValueError, match="already runs in step 1"):
                step.preempt(first)
            with pytest.raises(ValueError, match="is not running"):
                step.preempt(waits)
            step.preempt(second)
            assert step.preempted == [second]

        book.step(choose)

    def test_rows_at_their_limit_are_no_victims(self, desk):
        """They give their blocks back anyway, as soon as their last token is known."""
        book = desk(depth=2, num_blocks=6, max_model_len=20)
        first, second = book.ask(8, 9), book.ask(8, 2)
        outputs = [book.step() for _ in range(6)]
        assert second.num_preemptions == first.num_preemptions == 0
        for output in outputs:
            book.answer(output)
        assert second.is_finished


class TestRowsThatWaitForKV:
    @pytest.fixture
    def book(self, desk):
        """Every request waits for a transfer first; six blocks, of which each request soon needs four."""
        book = desk(num_blocks=6, max_model_len=20, budget=32)
        blocks = book.scheduler.blocks
        blocks.match = lambda request, row: Match(0, ready=False)
        blocks.transfers = lambda done, failed: Transferred(list(done), list(failed))
        return book

    def arrive(self, book, *requests, lost=()):
        output = book.step(nothing)
        done = [(request.row, 0) for request in requests]
        book.answer(output, transfers_done=done, transfers_failed=[request.row for request in lost])

    def test_they_keep_a_row_that_cannot_run(self, book):
        request = book.ask(8, 9)
        told = []
        output = book.step(
            lambda step: told.extend(
                [step.run(request), step.full, step.run(request), step.run_ready()]
            )
        )
        assert told == [False, False, False, False]
        assert output.new == []
        assert request.status is RequestStatus.WAITING_FOR_KV
        assert request.row >= 0
        assert request not in book.waiting
        assert book.scheduler.get_request_counts() == (0, 1)

    def test_they_run_when_it_came(self, book):
        request = book.ask(8, 9)
        book.step(run_everything)
        self.arrive(book, request)
        output = book.step(run_everything)
        (new,) = output.new
        assert (new.handle, len(new.block_ids[0])) == (request.handle, 2)
        assert len(output.new_block_row) == 0  # they came with the row
        assert (output.row.tolist(), output.num_tokens.tolist()) == ([request.row], [8])

    def test_a_row_that_is_preempted_as_it_arrives_is_never_announced(self, book):
        """Workers would hear of its end before its beginning."""
        first, second = book.ask(16, 2), book.ask(16, 2)
        book.step(run_everything)
        self.arrive(book, first, second)
        output = book.step(run_everything)
        assert second.num_preemptions == 1
        assert [new.handle for new in output.new] == [first.handle]
        assert output.gone.tolist() == []
        (news,) = book.answer(output).values()
        assert [event.handle for event in news.scheduled] == [first.handle]
        assert book.scheduler.arrived == set()

    def test_they_have_started_when_they_ran(self, book):
        first, second = book.ask(8, 1), book.ask(8, 1)
        book.step(run_everything)
        book.clock.advance(2.0)
        self.arrive(book, first, second)
        (news,) = book.answer(book.step(lambda step: step.run(first))).values()
        assert [event.handle for event in news.scheduled] == [first.handle]
        book.clock.advance(3.0)
        (news,) = book.answer(book.step(run_everything)).values()
        assert [(event.handle, event.queued_s) for event in news.scheduled] == [
            (second.handle, 5.0)
        ]

    def test_a_request_that_ends_as_it_arrives_does_not_run(self, book):
        request = book.ask(8, 9)
        book.step(run_everything)
        self.arrive(book, request)
        book.scheduler.finish_requests([request.handle], FinishReason.ABORT)
        output = book.step(run_everything)
        assert (output.new, output.row.tolist(), output.gone.tolist()) == ([], [], [])

    def test_rows_whose_load_failed_compute_again(self, book):
        request = book.ask(8, 9)
        book.step(run_everything)
        self.arrive(book, request)
        output = book.step(run_everything)
        book.scheduler.blocks.match = lambda request, row: Match(0)
        (news,) = book.answer(output, transfers_failed=[request.row]).values()
        assert len(news.handles) == 0
        assert request.num_preemptions == 1
        output = book.step()
        assert (output.gone.tolist(), output.num_tokens.tolist()) == ([0], [8])


def test_looking(desk):
    book = desk()
    book.clock.advance(5.0)
    first, second, third = book.ask(4), book.ask(5), book.ask(6)
    book.turn()
    fourth, fifth = book.ask(3), book.ask(3)

    def choose(step):
        assert step.now == book.clock()
        assert step.tokens_left == 16
        assert step.free_rows == 4 - step.num_running
        assert step.num_running == len(step.running) == 3
        assert step.running == [first, second, third]
        assert step.free_blocks == book.scheduler.blocks.num_free
        assert list(step.waiting) == [fourth, fifth]
        assert step.num_uncomputed(step.ready).tolist() == [1, 1, 1]

    book.step(choose)
