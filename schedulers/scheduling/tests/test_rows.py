"""Columns of running requests: entering, leaving, order and generations."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tenonry_scheduling import Rows


@pytest.fixture
def driver(make_driver):
    return make_driver(max_num_seqs=3)


def test_entering_fills_every_column(driver):
    rows, request = (
        driver.rows,
        driver.request(5, 7, min_tokens=2, stop_token_ids=(3, 4), output_token_ids=[50, 51]),
    )
    row = rows.enter(request)
    assert request.row == row
    assert rows.request(row) is request
    assert rows.token_ids[row, :7].tolist() == [100, 101, 102, 103, 104, 50, 51]
    assert (rows.num_tokens[row], rows.num_computed[row], rows.pending[row]) == (7, 0, 0)
    assert (rows.limit[row], rows.stop_from[row]) == (12, 7)
    assert rows.handle[row] == request.handle
    assert rows.stop_ids[row].tolist() == [3, 4]
    assert rows.may_stop[[3, 4]].all()
    assert row not in rows.active
    assert (rows.num_free, len(rows.active)) == (2, 0)


@pytest.mark.parametrize(
    ("prompt", "limit"), [(3, 5), (4, 5), (5, 10)], ids=["shorter", "as long", "longer"]
)
def test_a_row_that_will_be_computed_again_ends_where_it_outgrows_its_class(driver, prompt, limit):
    rows = Rows(3, 64, restart_after=4)
    assert rows.limit[rows.enter(driver.request(prompt, max_tokens=10 - prompt))] == limit
    assert rows.limit[rows.enter(driver.request(2, max_tokens=2))] == 4


def test_stop_ids_of_the_row_before_do_not_stay(driver):
    rows = driver.rows
    for ids in ((1, 2, 3, 4, 5), (6,), ()):
        request = driver.request(4, stop_token_ids=ids)
        row = rows.enter(request)
        assert [token for token in rows.stop_ids[row].tolist() if token != -1] == list(ids)
        rows.leave(row)


def test_leaving_keeps_the_known_tokens_with_the_request(driver):
    rows, request = driver.rows, driver.request(4)
    row = rows.enter(request)
    rows.token_ids[row, 4:6] = [70, 71]
    rows.num_tokens[row], rows.pending[row] = 7, 1  # two known outputs, one pending
    rows.leave(row)
    assert request.token_ids.tolist() == [100, 101, 102, 103, 70, 71]
    assert request.num_output_tokens == 2
    assert request.row == -1
    rows.token_ids[row] = 0
    assert request.token_ids[4] == 70  # its own copy


def test_a_row_without_request_is_an_error(driver):
    with pytest.raises(LookupError, match="row 1 holds no request"):
        driver.rows.request(1)


def test_only_announced_rows_are_gone_and_only_once(driver):
    rows = driver.rows
    quiet, announced = rows.enter(driver.request(4)), rows.enter(driver.request(4))
    rows.announced[announced] = True
    rows.leave(quiet)
    rows.leave(announced)
    assert rows.take_gone().tolist() == [announced]
    assert rows.take_gone().tolist() == []
    again = rows.enter(driver.request(4))
    rows.leave(again)
    assert rows.take_gone().tolist() == []


def test_leaving_raises_the_generation_and_remembers_the_step(driver):
    rows = driver.rows
    row = rows.enter(driver.request(4))
    rows.step = 7
    before = int(rows.generation[row])
    rows.leave(row)
    assert rows.generation[row] == before + 1
    assert rows.left_in == 7


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "activate", "leave"]), st.integers(0, 9)), max_size=60
    )
)
def test_running_rows_stand_in_the_order_of_activation(actions):
    from types import SimpleNamespace

    params = SimpleNamespace(
        min_tokens=0, logprobs=None, prompt_logprobs=None, structured_output=None
    )
    rows, entered, active = Rows(4, 8), [], []
    for number, (action, which) in enumerate(actions):
        if action == "enter" and rows.num_free:
            request = SimpleNamespace(
                token_ids=np.array([1, 2], np.int32), num_prompt_tokens=2, max_total_tokens=8, handle=number,
                source=SimpleNamespace(sampling_params=params, stop_token_ids=()), row=-1,
            )  # fmt: skip
            entered.append(rows.enter(request))
        elif action == "activate" and entered:
            row = entered.pop(which % len(entered))
            rows.activate(row)
            active.append(row)
        elif action == "leave" and entered + active:
            row = (entered + active)[which % len(entered + active)]
            (entered if row in entered else active).remove(row)
            rows.leave(row)
        assert rows.running().tolist() == active
        assert list(rows.active) == active
        assert rows.size - rows.num_free == len(active) + len(entered)
        assert not set(active) & set(entered)


def test_the_order_is_the_same_array_until_it_changes(driver):
    rows = driver.rows
    for _ in range(2):
        rows.activate(rows.enter(driver.request(4)))
    order = rows.running()
    assert rows.running() is order
    with pytest.raises(ValueError, match="read-only"):
        order[0] = 5
    for_workers = rows.as_i32(order)
    assert for_workers.dtype == np.int32
    assert for_workers.tolist() == order.tolist()
    assert rows.as_i32(order) is for_workers
    assert not for_workers.flags.writeable
    rows.leave(int(order[0]))
    assert len(order) == 2
    assert rows.running().tolist() == order[1:].tolist()
    assert rows.as_i32(rows.running()).tolist() == order[1:].tolist()
    assert rows.as_i32(order).tolist() == order.tolist()
