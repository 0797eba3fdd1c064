"""Prompts with log-probabilities are limited to a bounded share of each step."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry_scheduling import MAX_PROMPT_LOGPROB_TOKENS as MOST

LENGTH = 4096


@pytest.fixture
def driver(make_driver):
    return make_driver(budget=2048, max_model_len=LENGTH, num_blocks=4 * LENGTH, max_num_seqs=8)


def run_everything(step):
    """Run ready rows and start the requests that fit, skipping those that may not start yet."""
    step.run_ready()
    for request in step.waiting:
        if not step.run(request) and step.full:
            break


def prompt_logprob_tokens(driver, output) -> int:
    """Tokens of the step that belong to requests with prompt log-probabilities which have no output yet."""
    wants = [
        driver.rows.request(row).source.sampling_params.prompt_logprobs is not None
        for row in output.row.tolist()
    ]
    return int(output.num_tokens[np.array(wants, np.bool_)].sum())


def test_a_running_row_decodes_every_step_while_such_prompts_are_computed(driver):
    neighbour = driver.ask(10, 200)
    driver.turn()
    asking = [driver.ask(500, 1, prompt_logprobs=20) for _ in range(12)]
    steps = 0
    while not all(request.is_finished for request in asking):
        output = driver.step(run_everything)
        assert neighbour.row in output.row.tolist()
        assert prompt_logprob_tokens(driver, output) <= MOST
        driver.answer(output)
        steps += 1
    assert steps == -(-12 * 500 // MOST)  # no step leaves any of its share unused


def test_other_requests_start_past_those_that_wait_for_a_share(driver):
    driver.ask(600, 1, prompt_logprobs=0)
    waits = driver.ask(600, 1, prompt_logprobs=0)
    plain = driver.ask(10)
    driver.step(run_everything)
    assert waits.row < 0
    assert plain.row >= 0


def test_a_row_that_decodes_takes_no_share(driver):
    first = driver.ask(MOST, 9, prompt_logprobs=0)
    driver.turn()
    assert driver.rows.prompt_logprob_rows == set()
    second = driver.ask(MOST, 9, prompt_logprobs=0)
    output = driver.step(run_everything)
    assert dict(zip(output.row.tolist(), output.num_tokens.tolist(), strict=True)) == {
        first.row: 1,
        second.row: MOST,
    }


def test_a_request_that_was_preempted_computes_its_prompt_in_shares_again(driver):
    request = driver.ask(MOST + 50, 9, prompt_logprobs=0)
    for _ in range(2):
        driver.answer(driver.step(run_everything))
    driver.scheduler.preempt(request)
    sizes = [driver.step(run_everything).num_tokens.tolist() for _ in range(2)]
    assert sizes == [[MOST], [51]]


def start_all(step):
    for request in list(step.waiting):
        step.run(request)


def run_all_rows(step):
    """Runs the rows in one call, with all the tokens that are not computed yet."""
    ready = step.ready
    if len(ready):
        step.run_rows(ready, step.num_uncomputed(ready))
    start_all(step)


def run_each_request(step):
    """Runs one request after another, with more tokens than a share has."""
    for request in step.running:
        step.run(request, LENGTH)
    start_all(step)


@pytest.mark.parametrize("choose", [run_all_rows, run_each_request])
def test_a_scheduler_that_asks_for_more_than_the_share_goes_on(driver, choose):
    neighbour = driver.ask(10, 200)
    driver.answer(driver.step(choose))
    asking = [driver.ask(1000, 1, prompt_logprobs=1) for _ in range(3)]
    steps = 0
    while not all(request.is_finished for request in asking) and steps < 100:
        output = driver.step(choose)
        assert neighbour.row in output.row.tolist()
        assert prompt_logprob_tokens(driver, output) <= MOST
        driver.answer(output)
        steps += 1
    assert steps == -(-3 * 1000 // MOST)


def test_every_way_to_run_rows_holds_the_bound(driver):
    first, second = (driver.ask(600, 1, prompt_logprobs=0) for _ in range(2))
    answers = []

    def start(step):
        answers.extend([step.run(first, 1), step.run(second, 1)])

    def run_rows(step):
        rows = np.array([first.row, second.row])
        answers.append(step.run_rows(rows, np.array([MOST - 1, 2])))

    def run_rows_past_the_share(step):
        answers.append(step.run_rows(np.array([first.row]), np.array([MOST])))
        answers.append(step.prompt_logprob_tokens_left)
        answers.append(step.run_rows(np.array([second.row]), np.array([1])))

    def run_each(step):
        answers.extend([step.run(first), step.run(second), step.full])

    driver.step(start)
    assert driver.step(run_rows).num_tokens.tolist() == [MOST - 1, 1]
    assert driver.step(run_rows_past_the_share).num_tokens.tolist() == [MOST]
    assert driver.step(run_each).num_tokens.tolist() == [88, MOST - 88]
    assert answers == [True, True, True, True, 0, False, True, True, False]


def test_without_chunked_prefill_one_such_prompt_runs_whole(make_driver):
    driver = make_driver(
        budget=2048, max_model_len=LENGTH, num_blocks=4 * LENGTH, enable_chunked_prefill=False
    )
    lengths = (MOST - 1, 900, 900)
    for length in lengths:
        driver.ask(length, 1, prompt_logprobs=0)
    sizes = [driver.turn_sizes(run_everything) for _ in range(2)]
    assert sizes == [[MOST - 1, 900], [900]]
