"""Processing of results: stop conditions, stale rows, failures, clients and log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.errors import PluginError
from tenonry.outputs import FinishReason
from tenonry.step import ModelRunnerOutput, PromptLogprobs, RowFailure, TokenLogprobs


def only(outputs_by_client):
    (outputs,) = outputs_by_client.values()
    return outputs


class TestEndings:
    def test_max_tokens(self, make_driver):
        driver = make_driver()
        driver.ask(4, 2)
        assert only(driver.turn()).finished == []
        (finished,) = only(driver.turn()).finished
        assert (finished.reason, finished.stop_token_id) == (FinishReason.LENGTH, None)

    def test_max_model_len(self, make_driver):
        driver = make_driver(max_model_len=6)
        driver.ask(4, None)
        ends = [only(driver.turn()).finished for _ in range(2)]
        assert [len(end) for end in ends] == [0, 1]

    def test_a_stop_id_is_delivered_and_named(self, make_driver):
        driver = make_driver()
        driver.ask(4, 9, stop_token_ids=(7, 70_000))
        assert only(driver.turn(6)).finished == []
        outputs = only(driver.turn(70_000))
        assert outputs.token_ids.tolist() == [70_000]
        assert (outputs.finished[0].reason, outputs.finished[0].stop_token_id) == (
            FinishReason.STOP,
            70_000,
        )

    def test_a_token_that_only_looks_like_a_stop_id_goes_on(self, make_driver):
        """The first look is at the low bits only."""
        driver = make_driver()
        driver.ask(4, 9, stop_token_ids=(7,))
        assert only(driver.turn(7 + 65_536)).finished == []
        assert len(only(driver.turn(7)).finished) == 1

    def test_a_stop_id_of_another_request_goes_on(self, make_driver):
        driver = make_driver()
        first = driver.ask(4, 9, stop_token_ids=(7,))
        second = driver.ask(4, 9, stop_token_ids=(8,))
        finished = only(driver.turn(7)).finished
        assert [end.handle for end in finished] == [first.handle]
        assert not second.is_finished

    def test_min_tokens(self, make_driver):
        driver = make_driver()
        driver.ask(4, 9, stop_token_ids=(7,), min_tokens=3)
        assert [len(only(driver.turn(7)).finished) for _ in range(3)] == [0, 0, 1]

    def test_the_largest_min_tokens_is_a_number_like_any_other(self, make_driver):
        driver = make_driver(max_model_len=6)
        driver.ask(4, 2**31 - 1, stop_token_ids=(7,), min_tokens=2**31 - 1)
        assert only(driver.turn(7)).finished == []
        assert only(driver.turn(7)).finished[0].reason is FinishReason.LENGTH

    def test_delivered_tokens_count(self, make_driver):
        driver = make_driver()
        driver.ask(4, 5, stop_token_ids=(7,), min_tokens=4, output_token_ids=[1, 2, 3])
        assert len(only(driver.turn(7)).finished) == 1
        driver.ask(4, 5, output_token_ids=[1, 2, 3])
        assert [len(only(driver.turn()).finished) for _ in range(2)] == [0, 1]

    def test_a_stop_with_steps_in_flight_drops_what_is_behind_it(self, make_driver):
        driver = make_driver(depth=3)
        request = driver.ask(4, 9, stop_token_ids=(7,))
        first, second, third = driver.step(), driver.step(), driver.step()
        assert only(driver.answer(first, 7)).finished[0].reason is FinishReason.STOP
        assert request.token_ids.tolist() == [100, 101, 102, 103, 7]
        assert driver.answer(second) == {}
        assert driver.answer(third) == {}
        assert driver.step().gone.tolist() == [0]


class TestStaleRows:
    @pytest.mark.parametrize("how", ["abort", "preempt", "fail"])
    def test_results_of_an_older_generation_are_dropped(self, make_driver, how):
        driver = make_driver(depth=2)
        leaver, stayer = driver.ask(4, 9), driver.ask(5, 9)
        first, second = driver.step(), driver.step()
        row = leaver.row
        if how == "abort":
            driver.answer(first)
            driver.scheduler.finish_requests([leaver.handle], FinishReason.ABORT)
        elif how == "preempt":
            driver.answer(first)
            driver.scheduler.preempt(leaver)
        else:
            driver.answer(first, failed={row: RowFailure.NUMERICAL})
        newcomer = driver.ask(3, 9)
        third = driver.step()
        assert newcomer.row >= 0
        outputs = only(driver.answer(second))
        assert outputs.handles.tolist() == [stayer.handle]
        outputs = only(driver.answer(third))
        assert leaver.handle not in outputs.handles.tolist() or how == "preempt"

    def test_the_next_request_in_the_same_row_gets_only_its_own(self, make_driver):
        driver = make_driver(depth=2, max_num_seqs=1)
        leaver = driver.ask(4, 9)
        first, second = driver.step(), driver.step()
        driver.scheduler.finish_requests([leaver.handle], FinishReason.ABORT)
        newcomer = driver.ask(4, 9)
        third = driver.step()
        assert (third.gone.tolist(), third.new[0].row, third.row.tolist()) == ([0], 0, [0])
        assert [len(outputs.handles) for outputs in driver.answer(first, 5).values()] == [
            0
        ]  # its start only
        assert driver.answer(second, 6) == {}
        outputs = only(driver.answer(third, 7))
        assert (outputs.handles.tolist(), outputs.token_ids.tolist()) == ([newcomer.handle], [7])


class TestFailures:
    def test_the_row_ends_in_an_error_with_a_text(self, make_driver):
        driver = make_driver()
        bad, good = driver.ask(4), driver.ask(4)
        outputs = only(driver.answer(driver.step(), failed={bad.row: RowFailure.NUMERICAL}))
        (finished,) = outputs.finished
        assert (finished.handle, finished.reason) == (bad.handle, FinishReason.ERROR)
        assert "NaN" in finished.error
        assert outputs.handles.tolist() == [good.handle]

    def test_an_unknown_code_is_named(self, make_driver):
        driver = make_driver()
        request = driver.ask(4)
        outputs = only(driver.answer(driver.step(), failed={request.row: 77}))
        assert "77" in outputs.finished[0].error

    def test_a_token_that_comes_with_the_failure_is_not_delivered(self, make_driver):
        driver = make_driver()
        request = driver.ask(4, 1)
        output = driver.step()
        row = np.array([request.row], np.int32)
        result = ModelRunnerOutput(
            step_id=output.step_id, row=row, offsets=np.array([0, 1], np.int32), token_ids=np.array([5], np.int32),
            failed_row=row, failed_code=np.array([RowFailure.SAMPLING], np.int32),
        )  # fmt: skip
        outputs = only(driver.scheduler.update_from_output(output, result))
        assert len(outputs.handles) == 0
        assert [finished.reason for finished in outputs.finished] == [FinishReason.ERROR]

    @pytest.mark.parametrize(
        ("row", "tokens", "message"),
        [
            ([], [], "0 rows and 0 failures, but 1 rows"),
            ([0], [5, 6], "2 tokens for 1 rows"),
            ([2, 0], [5, 5], r"\[2\]"),
        ],
    )
    def test_a_wrong_answer_names_the_worker(self, make_driver, row, tokens, message):
        driver = make_driver()
        driver.ask(4)
        output = driver.step()
        result = ModelRunnerOutput(
            step_id=output.step_id,
            row=np.array(row, np.int32),
            token_ids=np.array(tokens, np.int32),
        )
        with pytest.raises(PluginError, match=message):
            driver.scheduler.update_from_output(output, result)


class TestClients:
    def test_each_client_gets_its_own_outputs(self, make_driver):
        driver = make_driver()
        requests = [driver.ask(4, 1 + number % 2, client=number % 3) for number in range(4)]
        outputs_by_client = driver.answer(
            driver.step(), {request.row: 50 + i for i, request in enumerate(requests)}
        )
        assert sorted(outputs_by_client) == [0, 1, 2]
        assert outputs_by_client[0].handles.tolist() == [requests[0].handle, requests[3].handle]
        assert outputs_by_client[0].token_ids.tolist() == [50, 53]
        assert [event.handle for event in outputs_by_client[1].scheduled] == [requests[1].handle]
        assert [finished.handle for finished in outputs_by_client[2].finished] == [
            requests[2].handle
        ]

    def test_the_first_run_is_reported_once_with_the_time_in_the_queue(self, make_driver):
        driver = make_driver()
        request = driver.ask(4)
        driver.clock.advance(2.5)
        (event,) = only(driver.turn()).scheduled
        assert (event.handle, event.queued_s, event.num_cached_tokens) == (request.handle, 2.5, 0)
        driver.scheduler.preempt(request)
        assert only(driver.turn()).scheduled == []

    def test_log_probabilities_point_at_the_clients_own_handles(self, make_driver):
        driver = make_driver()
        requests = [driver.ask(4, client=number % 2, logprobs=1) for number in range(4)]
        output = driver.step()
        lines = [requests[number].row for number in (3, 0, 2)]  # in any order, and not all
        logprobs = TokenLogprobs(
            np.array(lines, np.int32),
            np.array([[3, 0], [0, 0], [2, 0]], np.int32),
            np.zeros((3, 2), np.float32),
            np.ones(3, np.int32),
        )
        outputs_by_client = driver.answer(output, logprobs=logprobs)
        for client, numbers in ((0, [0, 2]), (1, [3])):
            found = outputs_by_client[client].logprobs
            handles = outputs_by_client[client].handles[found.row].tolist()
            assert handles == [requests[number].handle for number in numbers]
            assert found.token_ids[:, 0].tolist() == numbers

    def test_log_probabilities_of_a_row_that_left_are_dropped(self, make_driver):
        driver = make_driver()
        leaver, stayer = driver.ask(4, logprobs=0), driver.ask(4, logprobs=0)
        output, rows = driver.step(), [leaver.row, stayer.row]
        driver.scheduler.finish_requests([leaver.handle], FinishReason.ABORT)
        logprobs = TokenLogprobs(
            np.array(rows, np.int32),
            np.array([[1], [2]], np.int32),
            np.zeros((2, 1), np.float32),
            np.ones(2, np.int32),
        )
        outputs = only(driver.answer(output, logprobs=logprobs))
        assert outputs.logprobs.row.tolist() == [0]
        assert outputs.logprobs.token_ids.tolist() == [[2]]

    def test_log_probabilities_of_prompts_name_their_request(self, make_driver):
        driver = make_driver(budget=4)
        leaver, stayer = (
            driver.ask(2, prompt_logprobs=0),
            driver.ask(6, client=1, prompt_logprobs=0),
        )
        output = driver.step()
        parts = [
            PromptLogprobs(
                request.row,
                1,
                np.ones((1, 1), np.int32),
                np.zeros((1, 1), np.float32),
                np.ones(1, np.int32),
            )
            for request in (leaver, stayer)
        ]
        driver.scheduler.finish_requests([leaver.handle], FinishReason.ABORT)
        outputs_by_client = driver.answer(output, prompt_logprobs=parts)
        assert sorted(outputs_by_client) == [1]
        assert outputs_by_client[1].prompt_logprobs_handles == [stayer.handle]
        assert outputs_by_client[1].prompt_logprobs == [parts[1]]
        assert parts[1].row == 0  # now an index into the handles
