"""Rows with structured output never run with a pending token; the others keep their depth (SO-1)."""

from __future__ import annotations

import pytest

from tenonry.outputs import FinishReason
from tenonry.sampling_params import StructuredOutput

SPEC = StructuredOutput(regex="a+")


def rows_of(output):
    return set(output.row.tolist())


def test_a_row_with_a_grammar_waits_for_its_token_and_others_go_on(make_driver):
    driver = make_driver(depth=3)
    bound = driver.ask(4, 8, structured_output=SPEC)
    driver.compile()
    free = driver.ask(4, 8)
    first, second, third = driver.step(), driver.step(), driver.step()
    assert rows_of(first) == {bound.row, free.row}
    assert rows_of(second) == rows_of(third) == {free.row}
    driver.answer(first)
    fourth = driver.step()
    assert rows_of(fourth) == {bound.row, free.row}
    # The worker receives the token: its matcher reads it before the next mask.
    assert fourth.next_token[fourth.row == bound.row].tolist() == [9]


def test_its_prompt_goes_on_in_chunks(make_driver):
    driver = make_driver(depth=3, budget=4)
    bound = driver.ask(12, 8, structured_output=SPEC)
    driver.compile()
    outputs = [driver.step() for _ in range(4)]
    assert [rows_of(output) for output in outputs] == [{bound.row}] * 3 + [set()]


def test_asking_for_it_by_name_is_refused_while_its_token_is_pending(make_driver):
    driver = make_driver(depth=2)
    bound = driver.ask(4, 8, structured_output=SPEC)
    driver.compile()
    driver.step()
    answers = []
    driver.step(lambda step: answers.append(step.run(bound)))
    assert answers == [False]


def test_the_column_is_cleared_when_the_row_leaves(make_driver):
    driver = make_driver(depth=2)
    bound = driver.ask(4, 1, structured_output=SPEC)
    driver.compile()
    output = driver.step()
    row = bound.row
    assert driver.rows.has_grammar[row]
    assert driver.rows.num_grammars == 1
    driver.answer(output)
    assert not driver.rows.has_grammar.any()
    assert driver.rows.num_grammars == 0
    free = driver.ask(4, 8)
    first, second = driver.step(), driver.step()
    assert rows_of(first) == rows_of(second) == {free.row}


@pytest.mark.parametrize("depth", [1, 2])
def test_all_tokens_come(make_driver, depth):
    driver = make_driver(depth=depth)
    driver.ask(4, 5, structured_output=SPEC)
    driver.ask(4, 5)
    waiting = []
    tokens = 0
    for _ in range(20):
        waiting.append(driver.step())
        if len(waiting) == depth:
            for outputs in driver.answer(waiting.pop(0)).values():
                tokens += len(outputs.token_ids)
    assert tokens == 10


def start_all(step):
    step.run_ready()
    for request in list(step.waiting):
        step.run(request)


class TestCompiling:
    def test_a_request_starts_when_its_grammar_is_there_and_others_go_on(self, make_driver):
        driver = make_driver()
        bound = driver.ask(4, 8, structured_output=SPEC)
        free = driver.ask(4, 8)
        asks = []
        for _ in range(3):
            output = driver.step(start_all)
            assert rows_of(output) == {free.row}
            asks.append(output.prepare)
            driver.answer(output, prepared=[])
        # The specification is sent once; later steps only repeat the request.
        assert asks == [{bound.handle: SPEC}, {bound.handle: None}, {bound.handle: None}]
        driver.answer(driver.step(), prepared=[bound.handle])
        output = driver.step()
        assert rows_of(output) == {bound.row, free.row}
        assert output.prepare == {}

    def test_a_step_that_only_asks_is_sent(self, make_driver):
        driver = make_driver()
        driver.ask(4, 8, structured_output=SPEC)
        output = driver.step()
        assert not output.is_empty
        assert driver.scheduler.get_request_counts() == (0, 1)

    def test_it_keeps_its_place_in_the_queue(self, make_driver):
        driver = make_driver(max_num_seqs=1)
        first = driver.ask(4, 8, structured_output=SPEC)
        driver.answer(driver.step(lambda step: step.run(first)))
        second = driver.ask(4, 8)
        assert [request.handle for request in driver.waiting] == [first.handle, second.handle]

    def test_one_that_ends_meanwhile_is_not_asked_for_any_more(self, make_driver):
        driver = make_driver()
        bound = driver.ask(4, 8, structured_output=SPEC)
        output = driver.step()
        driver.scheduler.finish_requests([bound.handle], FinishReason.ABORT)
        driver.answer(output)
        assert not driver.scheduler.has_requests()
        assert driver.step().prepare == {}
        assert driver.scheduler.lifecycle.grammars.is_ready(bound) is False

    def test_a_preempted_one_does_not_wait_again(self, make_driver):
        driver = make_driver()
        bound = driver.ask(4, 8, structured_output=SPEC)
        driver.compile()
        driver.answer(driver.step())
        driver.scheduler.preempt(bound)
        assert driver.step().prepare == {}
        assert bound.row >= 0

    def test_only_so_many_wait_for_a_grammar_at_once(self, make_driver):
        driver = make_driver(max_num_seqs=2)
        requests = [driver.ask(4, 8, structured_output=SPEC) for _ in range(3)]
        asked = driver.step(start_all).prepare
        assert list(asked) == [request.handle for request in requests[:2]]
        assert requests[2] in driver.waiting
