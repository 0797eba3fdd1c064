"""Methods available to `choose`, and the resulting steps."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.request import RequestStatus


def nothing(step):
    """A step that schedules nothing."""


class TestStarting:
    def test_a_waiting_request_gets_a_row_and_blocks_for_all_its_tokens(self, make_driver):
        driver = make_driver(budget=6)
        request = driver.ask(10)
        output = driver.step()
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

    def test_part_of_it_when_asked(self, make_driver):
        driver = make_driver()
        request = driver.ask(10)
        output = driver.step(lambda step: step.run(request, 3))
        assert output.num_tokens.tolist() == [3]
        assert driver.step(lambda step: step.run_ready()).num_tokens.tolist() == [7]

    def test_nothing_changes_without_blocks(self, make_driver):
        driver = make_driver(num_blocks=3, max_model_len=12)
        first, second = driver.ask(5), driver.ask(6)
        answers = []
        output = driver.step(
            lambda step: answers.extend([step.run(first), step.full, step.run(second), step.full])
        )
        assert answers == [True, False, False, True]
        assert len(output.new) == 1
        assert second.row == -1
        assert second in driver.waiting
        assert driver.rows.num_free == 3
        assert driver.scheduler.blocks.num_free == 1

    def test_nothing_changes_without_rows_or_budget(self, make_driver):
        driver = make_driver(max_num_seqs=1)
        requests = [driver.ask(4), driver.ask(4)]
        answers = []
        driver.step(
            lambda step: answers.extend([step.run(request) for request in requests] + [step.full])
        )
        assert answers == [True, False, True]
        driver = make_driver(budget=4)
        requests = [driver.ask(4), driver.ask(4)]
        answers = []
        driver.step(
            lambda step: answers.extend([step.run(request) for request in requests] + [step.full])
        )
        assert answers == [True, False, True]

    def test_requests_that_do_not_wait_do_not_start(self, make_driver):
        driver = make_driver()
        request = driver.ask(4)
        stranger = driver.request(4)
        answers = []
        driver.step(
            lambda step: answers.extend(
                [step.run(request), step.run(request), step.run(stranger), step.full]
            )
        )
        assert answers == [True, False, False, False]

    def test_a_row_runs_once_per_step(self, make_driver):
        driver = make_driver()
        request = driver.ask(10)
        answers = []
        output = driver.step(
            lambda step: answers.extend(
                [step.run(request, 3), step.run(request, 3), step.run_ready()]
            )
        )
        assert answers == [True, False, False]
        assert output.row.tolist() == [request.row]

    def test_without_chunked_prefill_a_prompt_is_not_split(self, make_driver):
        driver = make_driver(budget=8, enable_chunked_prefill=False)
        first, second = driver.ask(5), driver.ask(6)
        answers = []
        driver.step(lambda step: answers.extend([step.run(first), step.run(second), step.full]))
        assert answers == [True, False, True]
        assert driver.step(lambda step: step.run(second)).num_tokens.tolist() == [6]

    def test_what_outgrew_a_whole_step_is_split_even_without_chunked_prefill(self, make_driver):
        """A preempted request may have more tokens than a step holds; it must be able to come back."""
        driver = make_driver(budget=6, enable_chunked_prefill=False)
        request = driver.ask(5, 9)
        for _ in range(4):
            driver.turn()
        driver.scheduler.preempt(request)
        sizes = [driver.step().num_tokens.tolist() for _ in range(2)]
        assert sizes == [[6], [3]]


class TestRunningRows:
    def start(self, driver, *lengths, **fields):
        requests = [driver.ask(length, 8, **fields) for length in lengths]
        driver.turn()
        return requests

    def test_decoding_sends_the_token_just_sampled(self, make_driver):
        driver = make_driver()
        first, second = self.start(driver, 4, 5)
        driver.answer(driver.step(nothing))
        output = driver.step(lambda step: step.run_ready())
        assert output.row.tolist() == [first.row, second.row]
        assert output.num_tokens.tolist() == [1, 1]
        assert output.next_token.tolist() == [9, 9]
        assert output.samples.tolist() == [True, True]
        assert output.generation.tolist() == driver.rows.generation[output.row].tolist()
        for column in (
            output.row,
            output.num_tokens,
            output.next_token,
            output.generation,
            output.new_block_row,
        ):
            assert column.dtype == np.int32

    def test_with_a_step_in_flight_the_worker_knows_the_token(self, make_driver):
        driver = make_driver(depth=2)
        driver.ask(4, 8)
        first = driver.step()
        second = driver.step(lambda step: step.run_ready())
        assert second.next_token.tolist() == [-1]
        assert driver.rows.pending.tolist() == [2, 0, 0, 0]
        driver.answer(first)
        assert driver.step(lambda step: step.run_ready()).next_token.tolist() == [-1]

    def test_only_known_tokens_are_offered_to_the_prefix_cache(self, make_driver):
        driver, offered = make_driver(depth=3), []
        driver.scheduler.blocks.register = lambda rows, known: offered.append(known.tolist())
        driver.ask(4, 8)
        first = driver.step()
        driver.step()
        driver.answer(first)
        driver.step()
        assert offered == [[4], [4], [5]]

    def test_a_row_at_its_limit_waits_for_the_result(self, make_driver):
        driver = make_driver(depth=3)
        driver.ask(4, 2)
        outputs = [driver.step(), driver.step(), driver.step()]
        assert [len(output.row) for output in outputs] == [1, 1, 0]

    def test_without_feedback_a_row_waits_for_its_token_but_a_prompt_goes_on(self, make_driver):
        driver = make_driver(depth=3, feeds_back=False, budget=8)
        short, long = driver.ask(4, 8), driver.ask(12, 8)
        first, second, third = driver.step(), driver.step(), driver.step()
        assert dict(zip(first.row.tolist(), first.num_tokens.tolist(), strict=True)) == {
            short.row: 4,
            long.row: 4,
        }
        assert dict(zip(second.row.tolist(), second.num_tokens.tolist(), strict=True)) == {
            long.row: 8
        }
        assert third.row.tolist() == []
        driver.answer(first)
        assert driver.step().next_token.tolist() == [9]

    def test_new_blocks_come_when_they_are_needed(self, make_driver):
        driver = make_driver(groups=2)
        (request,) = self.start(driver, 4)
        output = driver.step()
        assert output.new_block_row.tolist() == [request.row] * 2
        assert sorted(output.new_block_group.tolist()) == [0, 1]
        driver.answer(output)
        assert len(driver.step().new_block_row) == 0

    def test_run_rows_takes_all_or_none(self, make_driver):
        driver = make_driver(budget=6)
        requests = self.start(driver, 2, 2)
        rows, before = driver.rows, driver.rows.num_computed.copy()
        answers = []
        late = driver.ask(9)

        def choose(step):
            wanted = np.array([request.row for request in requests])
            answers.append(step.run(late, 5))
            answers.append(step.run_rows(wanted, np.array([1, 1])))
            answers.append(step.tokens_left)
            answers.append(step.run_rows(wanted[:1], np.array([1])))

        output = driver.step(choose)
        assert answers == [True, False, 1, True]
        assert sorted(output.row.tolist()) == [requests[0].row, late.row]
        assert rows.num_computed[requests[1].row] == before[requests[1].row]

    def test_decodes_come_first_and_the_last_gets_a_part(self, make_driver):
        driver = make_driver(budget=8)
        long = driver.ask(20, 4)
        driver.turn()
        short = driver.ask(2, 4)
        driver.answer(driver.step(lambda step: step.run(short)))
        output = driver.step(lambda step: step.run_ready())
        assert output.row.tolist() == [short.row, long.row]
        assert output.num_tokens.tolist() == [1, 7]

    def test_a_bound_on_each_row(self, make_driver):
        driver = make_driver(budget=16)
        for _ in range(2):
            driver.ask(10)
        driver.step(lambda step: [step.run(request, 1) for request in list(step.waiting)])
        assert driver.step(lambda step: step.run_ready(3)).num_tokens.tolist() == [3, 3]

    @pytest.mark.parametrize("num_tokens", [0, -1])
    def test_fewer_than_one_token_cannot_run(self, make_driver, num_tokens):
        driver = make_driver()
        running = driver.ask(4)
        driver.turn()
        waiting = driver.ask(4)
        answers = []

        def choose(step):
            answers.append(step.run(running, num_tokens))
            answers.append(step.run(waiting, num_tokens))
            answers.append(step.tokens_left)

        assert driver.step(choose).is_empty
        assert answers == [False, False, 16]
        assert waiting in driver.waiting

    @pytest.mark.parametrize("num_tokens", [None, 1])
    def test_a_row_at_its_limit_cannot_run(self, make_driver, num_tokens):
        driver = make_driver(depth=3)
        request = driver.ask(4, 2)
        outputs = [driver.step(), driver.step()]
        answers = []
        third = driver.step(lambda step: answers.append(step.run(request, num_tokens)))
        assert answers == [False]
        assert third.is_empty
        for output in outputs:
            driver.answer(output)
        assert request.is_finished

    @pytest.mark.parametrize("num_tokens", [None, 1])
    def test_a_row_whose_next_token_is_missing_cannot_run(self, make_driver, num_tokens):
        driver = make_driver(depth=2, feeds_back=False)
        request = driver.ask(4, 8)
        first = driver.step()
        answers = []

        def choose(step):
            answers.append(step.run(request, num_tokens))

        assert driver.step(choose).is_empty
        driver.answer(first)
        assert driver.step(choose).next_token.tolist() == [9]
        assert answers == [False, True]

    def test_ready_leaves_out_what_the_step_runs_already(self, make_driver):
        driver = make_driver()
        first, second = self.start(driver, 4, 4)
        seen = []
        driver.step(
            lambda step: (step.run(second), seen.extend(step.ready.tolist()), step.run_ready())
        )
        assert seen == [first.row]


class TestPreemption:
    def crowd(self, make_driver, **fields):
        """Two requests of three blocks each, which fill the pool."""
        driver = make_driver(num_blocks=6, max_model_len=20, **fields)
        requests = [driver.ask(8, 9) for _ in range(2)]
        driver.turn()
        for _ in range(4):
            driver.turn()
        assert driver.scheduler.blocks.num_free == 0
        return driver, *requests

    def test_the_victim_goes_back_with_its_tokens(self, make_driver):
        driver, first, second = self.crowd(make_driver)
        row = second.row
        output = driver.step()
        assert output.row.tolist() == [first.row]
        assert output.gone.tolist() == [row]
        assert output.new == []
        assert second.status is RequestStatus.PREEMPTED
        assert second.num_preemptions == 1
        assert second.token_ids.tolist() == [*range(100, 108), 9, 9, 9, 9, 9]
        assert second in driver.waiting
        assert driver.scheduler.make_stats().num_preemptions == 1

    def test_it_comes_back_with_all_its_tokens_as_output(self, make_driver):
        driver, first, second = self.crowd(make_driver)
        while not first.is_finished:
            driver.turn()
        (new,) = driver.step().new
        assert new.handle == second.handle
        assert (len(new.token_ids), new.num_output) == (13, 5)

    def test_the_scheduler_chooses_the_victim(self, make_driver):
        driver, first, second = self.crowd(make_driver)
        asked = []
        driver.scheduler.victim = lambda running: asked.append(list(running)) or running[0]
        output = driver.step(lambda step: step.run_ready())
        assert asked == [[first, second]]
        assert output.row.tolist() == [second.row]

    def test_the_last_one_is_spared(self, make_driver):
        driver, first, second = self.crowd(make_driver)
        answers = []
        driver.step(lambda step: (step.preempt(first), answers.append(step.run_ready())))
        assert answers == [True]
        assert second.row >= 0

    def test_only_what_runs_and_was_not_scheduled_can_be_preempted(self, make_driver):
        driver = make_driver()
        first, second = driver.ask(4), driver.ask(4)
        driver.turn()
        waits = driver.ask(4)

        def choose(step):
            step.run(first)
            with pytest.raises(ValueError, match="already runs in step 1"):
                step.preempt(first)
            with pytest.raises(ValueError, match="is not running"):
                step.preempt(waits)
            step.preempt(second)
            assert step.preempted == [second]

        driver.step(choose)

    def test_rows_at_their_limit_are_no_victims(self, make_driver):
        """They release their blocks anyway, as soon as their last token is known."""
        driver = make_driver(depth=2, num_blocks=6, max_model_len=20)
        first, second = driver.ask(8, 9), driver.ask(8, 2)
        outputs = [driver.step() for _ in range(6)]
        assert second.num_preemptions == first.num_preemptions == 0
        for output in outputs:
            driver.answer(output)
        assert second.is_finished


def test_looking(make_driver):
    driver = make_driver()
    driver.clock.advance(5.0)
    first, second, third = driver.ask(4), driver.ask(5), driver.ask(6)
    driver.turn()
    fourth, fifth = driver.ask(3), driver.ask(3)

    def choose(step):
        assert step.now == driver.clock()
        assert step.tokens_left == 16
        assert step.free_rows == 4 - step.num_running
        assert step.num_running == len(step.running) == 3
        assert step.running == [first, second, third]
        assert step.free_blocks == driver.scheduler.blocks.num_free
        assert list(step.waiting) == [fourth, fifth]
        assert step.num_uncomputed(step.ready).tolist() == [1, 1, 1]

    driver.step(choose)
