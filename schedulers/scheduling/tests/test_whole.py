"""Pieces of prompts that no step may cut, such as images whose tokens see one another (MM-1)."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tenonry.errors import RequestError
from tenonry_scheduling.whole import WholePieces
from tenonry_testkit.traffic import media_of


def run_everything(step):
    """Run ready rows and start the requests that fit, skipping those that may not start yet."""
    step.run_ready()
    for request in step.waiting:
        if not step.run(request) and step.full:
            break


def run_shares(step):
    """As `run_everything`, with at most four tokens of each prompt."""
    step.run_ready(4)
    for request in step.waiting:
        if not step.run(request, 4) and step.full:
            break


@pytest.fixture
def make(make_driver):
    def made(**settings):
        fields = {
            "budget": 10, "num_blocks": 256, "max_model_len": 64, "max_images": 8, "max_num_seqs": 3,
            "max_encoder_tokens": 1024,
        }  # fmt: skip
        driver = make_driver(**fields | settings)
        driver.scheduler.script = run_everything
        return driver

    return made


def ask(driver, length, *sizes, **fields):
    """A prompt whose first image begins at its third token, and each next one a token after the last."""
    return driver.ask(length, media=media_of(sizes, length, num_pieces=1), **fields)


def turns(driver, count, script=run_everything):
    """The tokens of each row in so many steps."""
    return [driver.turn_sizes(script) for _ in range(count)]


def test_a_chunk_ends_before_an_image_that_it_would_cut(make):
    driver = make()
    ask(driver, 30, 6, 6, 6)  # at 2, 9 and 16
    assert turns(driver, 4) == [[9], [7], [10], [4]]


def test_where_images_may_be_cut_a_chunk_ends_anywhere(make):
    driver = make()
    driver.ask(30, media=media_of((6, 6, 6), 30))
    assert turns(driver, 3) == [[10], [10], [10]]


def test_an_image_that_a_share_would_cut_runs_whole(make):
    driver = make()
    ask(driver, 20, 8)
    assert turns(driver, 4, run_shares) == [[2], [8], [4], [4]]


def test_an_earlier_row_gets_its_image_before_later_ones_get_their_shares(make):
    """Otherwise new rows would use up its budget step after step."""
    driver = make()
    ask(driver, 20, 8)
    driver.ask(20)
    driver.ask(20)
    assert turns(driver, 3, run_shares) == [[2, 4, 4], [8, 2], [4, 4, 2]]


def test_what_a_row_leaves_before_its_image_goes_to_the_others(make):
    driver = make(budget=12)
    driver.ask(9)
    ask(driver, 20, 9)
    driver.ask(12)
    assert turns(driver, 2) == [[9, 2, 1], [1, 11]]


def test_a_row_that_may_not_compute_more_ends_before_its_piece():
    whole = WholePieces()
    whole.by_row = {0: [(4, 10)], 1: [(0, 6)]}
    both = np.arange(2)
    start = np.zeros(2, np.int32)
    wanted = np.array([6, 4], np.int32)
    rows, count = whole.fit_rows(both, start, wanted, may_extend=False)
    assert (rows.tolist(), count.tolist()) == ([0], [4])
    rows, count = whole.fit_rows(both, start, wanted, may_extend=True)
    assert (rows.tolist(), count.tolist()) == ([0, 1], [4, 6])


def test_a_row_that_enters_in_an_image_computes_the_rest_of_it(make_driver):
    driver = make_driver(budget=8, max_images=8, max_num_seqs=2, max_model_len=64, num_blocks=64)
    whole = driver.scheduler.lifecycle.whole
    request = ask(driver, 20, 6)
    driver.step(lambda step: None)
    whole.enter(request, 1, 5)
    assert whole.by_row == {1: [(2, 8)]}
    assert [whole.fit(1, 5, count, left) for count, left in [(1, 8), (1, 2), (3, 3), (9, 9)]] == [
        3,
        0,
        3,
        9,
    ]
    whole.advance(1, 7)
    assert whole.by_row
    whole.advance(1, 8)
    assert not whole.by_row


def test_without_chunks_a_prompt_runs_whole(make):
    driver = make(enable_chunked_prefill=False, budget=32)
    ask(driver, 30, 6, 6)
    ask(driver, 12, 6)
    assert turns(driver, 2) == [[30], [1, 12]]


def test_a_row_that_ends_or_comes_back_leaves_nothing_behind(make):
    driver = make()
    request = ask(driver, 30, 6, 6, 6)
    driver.turn()
    whole = driver.scheduler.lifecycle.whole
    assert whole.by_row == {request.row: [(9, 15), (16, 22)]}
    driver.scheduler.preempt(request)
    assert not whole.by_row
    assert turns(driver, 1) == [[9]]
    driver.scheduler.finish_requests([request.handle], "abort")
    assert not whole.by_row


def test_a_prompt_with_log_probabilities_keeps_its_images_whole(make):
    driver = make(budget=400, max_model_len=600, num_blocks=600)
    ask(
        driver, 500, 200, 100, prompt_logprobs=1
    )  # at 2 and 203; 256 of such tokens are a step's share
    assert turns(driver, 2) == [[203], [256]]


def test_an_image_that_no_step_has_room_for_is_refused_with_the_setting(make):
    driver = make()
    ask(driver, 20, 8)
    with pytest.raises(
        RequestError, match=r"9 tokens, which see.* room for 8 .*--max-num-batched-tokens by 1"
    ):
        ask(driver, 20, 9)


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([[2, 3], [4, 2]], "from 4 to 6 must begin at 5 or later"),
        ([[18, 5]], "from 18 to 23 .* within the 20 tokens"),
        ([[3, 0]], "from 3 to 3"),
    ],
)
def test_pieces_that_are_none_are_refused(make, pieces, reason):
    media = msgspec.structs.replace(media_of((6,), 20), whole=np.array(pieces))
    with pytest.raises(RequestError, match=reason):
        make().ask(20, media=media)
