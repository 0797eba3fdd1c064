"""Images that a step encodes: at most `max_encoder_tokens`, and a chunk ends before one that does not fit (MM-1)."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tenonry_testkit.traffic import media_of

MOST = 6


def run_everything(step):
    """Run ready rows and start the requests that fit, skipping those that may not start yet."""
    step.run_ready()
    for request in step.waiting:
        if not step.run(request) and step.full:
            break


@pytest.fixture
def make(make_driver):
    def made(**settings):
        fields = {"budget": 32, "num_blocks": 256, "max_model_len": 64, "max_images": 8}
        driver = make_driver(**fields | {"max_encoder_tokens": MOST} | settings)
        driver.scheduler.script = run_everything
        return driver

    return made


def ask(driver, length, *sizes, **fields):
    """A prompt whose first image begins at its third token, and each next one a token after the last."""
    return driver.ask(length, media=media_of(sizes, length), **fields)


def turns(driver, count):
    """The tokens of each row in so many steps."""
    return [driver.turn_sizes(run_everything) for _ in range(count)]


def test_a_chunk_ends_before_an_image_that_does_not_fit(make):
    driver = make()
    ask(driver, 20, 4, 2, 3, 3)  # they begin at 2, 7, 10 and 14
    assert turns(driver, 3) == [[10], [10], [1]]


def test_an_image_larger_than_the_budget_has_a_step_of_its_own(make):
    driver = make()
    ask(driver, 30, 2, 20, 2)  # at 2, 5 and 26
    assert turns(driver, 3) == [[5], [21], [4]]


def test_an_image_that_was_begun_is_encoded_already(make):
    driver = make(budget=8)
    ask(driver, 20, 6, 6)  # at 2 and 9
    assert turns(driver, 3) == [[8], [8], [4]]


def test_earlier_rows_encode_first_and_the_others_wait_before_their_images(make):
    driver = make()
    ask(driver, 12, 5)
    ask(driver, 12, 5)
    ask(driver, 12, 1)
    assert turns(driver, 3) == [[12, 2, 12], [1, 10, 1], [1, 1, 1]]


def test_others_decode_in_every_step_and_start_while_many_images_are_encoded(make):
    driver = make()
    neighbour = driver.ask(3, 40)
    driver.turn()
    many = ask(driver, 48, *[6] * 6)
    driver.turn()
    late = driver.ask(3, 40)
    for _ in range(4):
        output = driver.step(run_everything)
        assert {neighbour.row, many.row, late.row} == set(output.row.tolist())
        driver.answer(output)
    assert driver.rows.num_computed[many.row] < 48


def test_a_request_that_begins_with_an_image_waits_and_few_pass_it(make):
    driver = make(max_num_seqs=3, budget=64)
    busy = ask(driver, 60, *[6] * 8)
    driver.turn()
    media = msgspec.structs.replace(media_of((6,), 10), spans=np.array([[0, 6]]))
    waits = driver.ask(10, media=media)
    later = [driver.ask(3, 1) for _ in range(6)]
    started = []
    while waits.row < 0:
        output = driver.step(run_everything)
        started += [new.handle for new in output.new]
        driver.answer(output)
    passed = started[: started.index(waits.handle)]
    assert passed == [request.handle for request in later[:3]]
    assert driver.rows.num_computed[busy.row] >= 60
    while not later[-1].is_finished:
        driver.turn()


def test_one_that_ends_in_the_queue_keeps_none_waiting(make):
    driver = make(max_num_seqs=2, budget=64)
    ask(driver, 60, *[6] * 8)
    driver.turn()
    media = msgspec.structs.replace(media_of((6,), 10), spans=np.array([[0, 6]]))
    waits = driver.ask(10, media=media)
    later = [driver.ask(3, 1) for _ in range(4)]
    for _ in range(2):
        driver.turn()
    driver.scheduler.finish_requests([waits.handle], "abort")
    for _ in range(2):
        driver.turn()
    assert all(request.is_finished for request in later)


def test_a_row_that_comes_back_encodes_again(make):
    driver = make()
    first = ask(driver, 12, 5)
    driver.turn()
    driver.scheduler.preempt(first)
    ask(driver, 12, 5)
    assert turns(driver, 2) == [[13, 2], [1, 10]]


def test_a_row_that_ends_leaves_nothing_behind(make):
    driver = make()
    first = ask(driver, 20, 4, 4)
    driver.turn()
    assert driver.scheduler.lifecycle.encoder.to_encode
    driver.scheduler.finish_requests([first.handle], "abort")
    assert not driver.scheduler.lifecycle.encoder.to_encode


def test_without_chunks_a_prompt_runs_whole_and_alone_where_it_must(make):
    driver = make(enable_chunked_prefill=False, budget=64)
    ask(driver, 30, 4, 4, 4)
    ask(driver, 12, 5)
    ask(driver, 12, 1)
    assert turns(driver, 2) == [[30], [1, 12, 12]]


def test_without_chunks_the_others_run_beside_a_prompt_with_too_many_images(make):
    driver = make(enable_chunked_prefill=False, budget=64)
    driver.ask(3)
    assert turns(driver, 1) == [[3]]
    ask(driver, 30, 4, 4, 4)
    driver.ask(12)
    one_by_one = [lambda step: [step.run(each) for each in [*step.waiting, *step.running]]]
    assert sorted(driver.turn_sizes(one_by_one[0])) == [1, 12, 30]


def test_by_default_a_step_encodes_as_many_tokens_as_it_has(make):
    driver = make(max_encoder_tokens=0)
    ask(driver, 20, 4, 2, 3, 3)
    assert turns(driver, 1) == [[20]]


def test_an_engine_without_images_counts_none(make_driver):
    driver = make_driver()
    assert driver.scheduler.lifecycle.encoder is None
