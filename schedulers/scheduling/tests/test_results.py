"""How results come in: stop conditions, stale rows, failures, clients and log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.errors import PluginError
from tenonry.outputs import FinishReason
from tenonry.step import ModelRunnerOutput, PromptLogprobs, RowFailure, TokenLogprobs


def only(news):
    (outputs,) = news.values()
    return outputs


class TestEndings:
    def test_max_tokens(self, desk):
        book = desk()
        book.ask(4, 2)
        assert only(book.turn()).finished == []
        (finished,) = only(book.turn()).finished
        assert (finished.reason, finished.stop_token_id) == (FinishReason.LENGTH, None)

    def test_max_model_len(self, desk):
        book = desk(max_model_len=6)
        book.ask(4, None)
        ends = [only(book.turn()).finished for _ in range(2)]
        assert [len(end) for end in ends] == [0, 1]

    def test_a_stop_id_is_delivered_and_named(self, desk):
        book = desk()
        book.ask(4, 9, stop_token_ids=(7, 70_000))
        assert only(book.turn(6)).finished == []
        outputs = only(book.turn(70_000))
        assert outputs.token_ids.tolist() == [70_000]
        assert (outputs.finished[0].reason, outputs.finished[0].stop_token_id) == (
            FinishReason.STOP,
            70_000,
        )

    def test_a_token_that_only_looks_like_a_stop_id_goes_on(self, desk):
        """The first look is at the low bits only."""
        book = desk()
        book.ask(4, 9, stop_token_ids=(7,))
        assert only(book.turn(7 + 65_536)).finished == []
        assert len(only(book.turn(7)).finished) == 1

    def test_a_stop_id_of_another_request_goes_on(self, desk):
        book = desk()
        first = book.ask(4, 9, stop_token_ids=(7,))
        second = book.ask(4, 9, stop_token_ids=(8,))
        finished = only(book.turn(7)).finished
        assert [end.handle for end in finished] == [first.handle]
        assert not second.is_finished

    def test_min_tokens(self, desk):
        book = desk()
        book.ask(4, 9, stop_token_ids=(7,), min_tokens=3)
        assert [len(only(book.turn(7)).finished) for _ in range(3)] == [0, 0, 1]

    def test_the_largest_min_tokens_is_a_number_like_any_other(self, desk):
        book = desk(max_model_len=6)
        book.ask(4, 2**31 - 1, stop_token_ids=(7,), min_tokens=2**31 - 1)
        assert only(book.turn(7)).finished == []
        assert only(book.turn(7)).finished[0].reason is FinishReason.LENGTH

    def test_delivered_tokens_count(self, desk):
        book = desk()
        book.ask(4, 5, stop_token_ids=(7,), min_tokens=4, output_token_ids=[1, 2, 3])
        assert len(only(book.turn(7)).finished) == 1
        book.ask(4, 5, output_token_ids=[1, 2, 3])
        assert [len(only(book.turn()).finished) for _ in range(2)] == [0, 1]

    def test_a_stop_with_steps_in_flight_drops_what_is_behind_it(self, desk):
        book = desk(depth=3)
        request = book.ask(4, 9, stop_token_ids=(7,))
        first, second, third = book.step(), book.step(), book.step()
        assert only(book.answer(first, 7)).finished[0].reason is FinishReason.STOP
        assert request.token_ids.tolist() == [100, 101, 102, 103, 7]
        assert book.answer(second) == {}
        assert book.answer(third) == {}
        assert book.step().gone.tolist() == [0]


class TestStaleRows:
    @pytest.mark.parametrize("how", ["abort", "preempt", "fail"])
    def test_results_of_an_older_generation_are_dropped(self, desk, how):
        book = desk(depth=2)
        leaver, stayer = book.ask(4, 9), book.ask(5, 9)
        first, second = book.step(), book.step()
        row = leaver.row
        if how == "abort":
            book.answer(first)
            book.scheduler.finish_requests([leaver.handle], FinishReason.ABORT)
        elif how == "preempt":
            book.answer(first)
            book.scheduler.preempt(leaver)
        else:
            book.answer(first, failed={row: RowFailure.NUMERICAL})
        newcomer = book.ask(3, 9)
        third = book.step()
        assert newcomer.row >= 0
        outputs = only(book.answer(second))
        assert outputs.handles.tolist() == [stayer.handle]
        outputs = only(book.answer(third))
        assert leaver.handle not in outputs.handles.tolist() or how == "preempt"

    def test_the_next_request_in_the_same_row_gets_only_its_own(self, desk):
        book = desk(depth=2, max_num_seqs=1)
        leaver = book.ask(4, 9)
        first, second = book.step(), book.step()
        book.scheduler.finish_requests([leaver.handle], FinishReason.ABORT)
        newcomer = book.ask(4, 9)
        third = book.step()
        assert (third.gone.tolist(), third.new[0].row, third.row.tolist()) == ([0], 0, [0])
        assert [len(outputs.handles) for outputs in book.answer(first, 5).values()] == [
            0
        ]  # news of its start only
        assert book.answer(second, 6) == {}
        outputs = only(book.answer(third, 7))
        assert (outputs.handles.tolist(), outputs.token_ids.tolist()) == ([newcomer.handle], [7])


class TestFailures:
    def test_the_row_ends_in_an_error_with_a_text(self, desk):
        book = desk()
        bad, good = book.ask(4), book.ask(4)
        outputs = only(book.answer(book.step(), failed={bad.row: RowFailure.NUMERICAL}))
        (finished,) = outputs.finished
        assert (finished.handle, finished.reason) == (bad.handle, FinishReason.ERROR)
        assert "NaN" in finished.error
        assert outputs.handles.tolist() == [good.handle]

    def test_an_unknown_code_is_named(self, desk):
        book = desk()
        request = book.ask(4)
        outputs = only(book.answer(book.step(), failed={request.row: 77}))
        assert "77" in outputs.finished[0].error

    def test_a_token_that_comes_with_the_failure_is_not_delivered(self, desk):
        book = desk()
        request = book.ask(4, 1)
        output = book.step()
        row = np.array([request.row], np.int32)
        result = ModelRunnerOutput(
            step_id=output.step_id, row=row, offsets=np.array([0, 1], np.int32), token_ids=np.array([5], np.int32),
            failed_row=row, failed_code=np.array([RowFailure.SAMPLING], np.int32),
        )  # fmt: skip
        outputs = only(book.scheduler.update_from_output(output, result))
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
    def test_a_wrong_answer_names_the_worker(self, desk, row, tokens, message):
        book = desk()
        book.ask(4)
        output = book.step()
        result = ModelRunnerOutput(
            step_id=output.step_id,
            row=np.array(row, np.int32),
            token_ids=np.array(tokens, np.int32),
        )
        with pytest.raises(PluginError, match=message):
            book.scheduler.update_from_output(output, result)


class TestClients:
    def test_each_client_gets_its_own_news(self, desk):
        book = desk()
        requests = [book.ask(4, 1 + number % 2, client=number % 3) for number in range(4)]
        news = book.answer(book.step(), {request.row: 50 + i for i, request in enumerate(requests)})
        assert sorted(news) == [0, 1, 2]
        assert news[0].handles.tolist() == [requests[0].handle, requests[3].handle]
        assert news[0].token_ids.tolist() == [50, 53]
        assert [event.handle for event in news[1].scheduled] == [requests[1].handle]
        assert [finished.handle for finished in news[2].finished] == [requests[2].handle]

    def test_the_first_run_is_told_once_with_the_time_in_the_queue(self, desk):
        book = desk()
        request = book.ask(4)
        book.clock.advance(2.5)
        (event,) = only(book.turn()).scheduled
        assert (event.handle, event.queued_s, event.num_cached_tokens) == (request.handle, 2.5, 0)
        book.scheduler.preempt(request)
        assert only(book.turn()).scheduled == []

    def test_log_probabilities_point_at_the_clients_own_handles(self, desk):
        book = desk()
        requests = [book.ask(4, client=number % 2, logprobs=1) for number in range(4)]
        output = book.step()
        lines = [requests[number].row for number in (3, 0, 2)]  # in any order, and not all
        logprobs = TokenLogprobs(
            np.array(lines, np.int32),
            np.array([[3, 0], [0, 0], [2, 0]], np.int32),
            np.zeros((3, 2), np.float32),
            np.ones(3, np.int32),
        )
        news = book.answer(output, logprobs=logprobs)
        for client, numbers in ((0, [0, 2]), (1, [3])):
            found = news[client].logprobs
            handles = news[client].handles[found.row].tolist()
            assert handles == [requests[number].handle for number in numbers]
            assert found.token_ids[:, 0].tolist() == numbers

    def test_log_probabilities_of_a_row_that_left_are_dropped(self, desk):
        book = desk()
        leaver, stayer = book.ask(4, logprobs=0), book.ask(4, logprobs=0)
        output, rows = book.step(), [leaver.row, stayer.row]
        book.scheduler.finish_requests([leaver.handle], FinishReason.ABORT)
        logprobs = TokenLogprobs(
            np.array(rows, np.int32),
            np.array([[1], [2]], np.int32),
            np.zeros((2, 1), np.float32),
            np.ones(2, np.int32),
        )
        outputs = only(book.answer(output, logprobs=logprobs))
        assert outputs.logprobs.row.tolist() == [0]
        assert outputs.logprobs.token_ids.tolist() == [[2]]

    def test_log_probabilities_of_prompts_name_their_request(self, desk):
        book = desk(budget=4)
        leaver, stayer = book.ask(2, prompt_logprobs=0), book.ask(6, client=1, prompt_logprobs=0)
        output = book.step()
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
        book.scheduler.finish_requests([leaver.handle], FinishReason.ABORT)
        news = book.answer(output, prompt_logprobs=parts)
        assert sorted(news) == [1]
        assert news[1].prompt_logprobs_handles == [stayer.handle]
        assert news[1].prompt_logprobs == [parts[1]]
        assert parts[1].row == 0  # now an index into the handles
