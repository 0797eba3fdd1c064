"""At most `max_loras` adapters have rows (EC-13), and a request that waits for one does not starve."""

from __future__ import annotations

from types import SimpleNamespace

from tenonry.step import Adapter
from tenonry_scheduling.adapters import AdapterLimit

MOST = 2


def request(handle, digest=None):
    adapter = None if digest is None else Adapter("name", digest)
    return SimpleNamespace(handle=handle, source=SimpleNamespace(adapter=adapter))


def entered(*digests):
    limit = AdapterLimit(MOST, max_passing=3)
    rows = [request(number, digest) for number, digest in enumerate(digests)]
    for row in rows:
        limit.enter(row)
    limit.begin_step()
    return limit, rows


def test_a_known_adapter_and_none_at_all_are_admitted_and_a_third_is_not():
    limit, _ = entered("x", "y")
    assert limit.admits(request(8, "x"))
    assert limit.admits(request(9))
    assert not limit.admits(request(10, "z"))


def test_the_content_counts_not_the_name():
    limit, _ = entered("x", "x")
    assert limit.admits(request(8, "y"))


def test_after_a_refusal_no_adapter_passes_in_the_same_step():
    limit, _ = entered("x", "y")
    assert not limit.admits(request(8, "z"))
    assert not limit.admits(request(9, "x"))
    limit.begin_step()
    assert limit.admits(request(9, "x"))


def test_the_last_row_of_an_adapter_makes_room():
    limit, rows = entered("x", "y", "y")
    limit.leave(rows[1])
    assert not limit.admits(request(8, "z"))
    limit.leave(rows[2])
    limit.begin_step()
    assert limit.admits(request(8, "z"))


def test_few_requests_without_an_adapter_pass_one_that_waits():
    limit, _ = entered("x", "y")
    for number in range(3):
        limit.begin_step()
        assert not limit.admits(request(8, "z"))
        assert limit.admits(request(20 + number))
        limit.enter(request(20 + number))
    limit.begin_step()
    assert not limit.admits(request(8, "z"))
    assert limit.is_closed
    assert not limit.admits(request(30))


def test_steps_that_visit_no_request_forget_none_that_passed():
    """All rows are in use for some steps: the waiting request is not visited in these, but keeps its count."""
    limit, _ = entered("x", "y")
    for number in range(3):
        limit.begin_step()
        assert not limit.admits(request(8, "z"))
        limit.enter(request(20 + number))
        limit.begin_step()
    limit.begin_step()
    assert not limit.admits(request(8, "z"))
    assert limit.is_closed


def test_the_next_one_that_waits_has_a_count_of_its_own():
    limit, _ = entered("x", "y")
    assert not limit.admits(request(8, "z"))
    for number in range(3):
        limit.enter(request(20 + number))
    limit.begin_step()
    assert not limit.admits(request(9, "w"))  # the first one was aborted
    assert not limit.is_closed


def test_one_that_had_a_row_and_waits_again_is_passed_anew():
    limit, rows = entered("x", "y")
    assert not limit.admits(request(8, "z"))
    for number in range(3):
        limit.enter(request(20 + number))
    limit.leave(rows[0])
    limit.begin_step()
    limit.enter(request(8, "z"))
    limit.leave(request(8, "z"))  # preempted
    limit.enter(rows[0])
    limit.begin_step()
    assert not limit.admits(request(8, "z"))
    assert not limit.is_closed


def test_once_nothing_waits_the_count_begins_anew():
    limit, rows = entered("x", "y")
    assert not limit.admits(request(8, "z"))
    for number in range(3):
        limit.enter(request(20 + number))
    limit.leave(rows[0])
    limit.begin_step()
    assert limit.admits(request(8, "z"))
    limit.enter(request(8, "z"))
    limit.begin_step()
    assert not limit.admits(request(9, "w"))
    assert not limit.is_closed


def test_a_request_that_leaves_twice_counts_once():
    limit, rows = entered("x", "x", "y")
    limit.enter(rows[0])
    limit.leave(rows[0])
    limit.leave(rows[0])
    assert not limit.admits(request(8, "z"))


def test_open_requests_are_counted_by_the_name_of_their_adapter():
    limit = AdapterLimit(MOST, max_passing=3)
    first, second, plain = request(1, "x"), request(2, "x"), request(3)
    for each in (first, second, plain):
        limit.begin(each)
    limit.enter(first)
    limit.enter(plain)
    one_of_each = {"lora_requests_running:name": 1, "lora_requests_waiting:name": 1}
    assert limit.numbers() == one_of_each
    limit.leave(first)  # preempted
    assert limit.numbers() == {"lora_requests_running:name": 0, "lora_requests_waiting:name": 2}
    limit.enter(second)
    limit.end(first)
    limit.leave(second)
    limit.end(second)
    limit.leave(plain)
    limit.end(plain)
    assert limit.numbers() == {}


def test_a_scheduler_reports_them_until_they_end(make_driver):
    driver = make_driver(max_loras=1)
    for digest in "xy":
        driver.ask(3, 2, adapter=Adapter(f"named {digest}", digest))
    driver.turn()
    found = driver.scheduler.make_stats().extra
    assert found["lora_requests_running:named x"] == found["lora_requests_waiting:named y"] == 1
    while driver.scheduler.has_requests():
        driver.turn()
    assert not any(name.startswith("lora") for name in driver.scheduler.make_stats().extra)
