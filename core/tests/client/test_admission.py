"""The capacity of one front end, and its share if there are several."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from tenonry.client.admission import CHARS_PER_REQUEST, MAX_WORK_PER_TURN, Admission, Ticket
from tenonry.config import EngineConfig
from tenonry.errors import QueueFullError, RequestError


def make_admission(num_engines: int = 1, num_clients: int = 1) -> tuple[Admission, Any, list[str]]:
    """Admission of 8 sequences per engine and 4 in the queue; the engines; the reasons given to loggers."""

    config = EngineConfig(model="m", max_num_seqs=8, max_num_queued_reqs=4)
    reasons: list[str] = []
    stats = SimpleNamespace(submit=lambda _, reason: reasons.append(reason))
    info = SimpleNamespace(engine_indexes=tuple(range(num_engines)))
    client = SimpleNamespace(check_alive=lambda: None, dead=None)
    engines: Any = SimpleNamespace(stats=stats, info=info, count=num_clients, client=client)
    return Admission(config, engines), engines, reasons


def test_a_request_above_the_whole_capacity_is_invalid():
    admission, _, reasons = make_admission()
    with (
        pytest.raises(RequestError, match="n=13: the capacity is 12 sequences in all") as refused,
        admission.admit("held1", 13),
    ):
        raise AssertionError
    assert refused.value.param == "n"
    assert reasons == ["invalid"]


@pytest.mark.parametrize(
    ("num_engines", "num_clients", "capacity"), [(1, 1, 12), (2, 1, 20), (2, 2, 10), (2, 3, 7)]
)
def test_each_front_end_has_its_share_of_the_capacity(num_engines, num_clients, capacity):
    admission, engines, reasons = make_admission(num_engines, num_clients)
    with admission.admit("held2", capacity):
        with (
            pytest.raises(QueueFullError, match=f"the capacity is {capacity}"),
            admission.admit("held3", 1),
        ):
            raise AssertionError
        engines.info.engine_indexes += (num_engines,)
        with admission.admit("held4", 1):
            pass
    assert reasons == ["queue_full"]


class TestTickets:
    """A ticket lasts from admission to the end of its request."""

    def test_the_capacity_is_taken_until_the_request_ends(self):
        admission, _, _ = make_admission()
        with admission.admit("r", 12):
            pass
        with pytest.raises(QueueFullError, match="12 sequences run or wait"):
            admission.check_capacity(1)
        with pytest.raises(RequestError, match="'r' is in use"), admission.admit("r", 0):
            raise AssertionError
        admission.end("r")
        admission.check_capacity(12)

    def test_a_request_that_gets_no_stream_gives_it_back(self):
        admission, _, reasons = make_admission()
        for error in (RequestError("wrong"), asyncio.CancelledError()):
            with pytest.raises(type(error)), admission.admit("r", 12):
                raise error
        assert (admission.tickets, reasons) == ({}, ["invalid"])
        admission.check_capacity(12)

    @pytest.mark.parametrize("is_draining", [True, False])
    def test_who_waits_for_the_end_of_requests_is_woken_by_it(self, is_draining):
        """Those that wait for the end of a pause are waited for by a drain alone."""
        admission, _, _ = make_admission()

        async def main() -> None:
            for name in "ab":
                with admission.admit(name, 1):
                    pass
            waiting = contextlib.ExitStack()
            waiting.enter_context(admission.admit("c", 1))
            admission.is_draining = is_draining
            ends = [asyncio.create_task(admission.wait_until_empty()) for _ in range(2)]
            for name in "ab":
                await asyncio.sleep(0)
                assert not any(end.done() for end in ends)
                admission.end(name)
            if is_draining:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert not any(end.done() for end in ends)
                waiting.close()
                admission.end("c")
            assert await asyncio.wait_for(asyncio.gather(*ends), 20) == [True, True]

        asyncio.run(main())

    def test_nobody_waits_for_dead_engines(self):
        admission, engines, _ = make_admission()

        async def main() -> bool:
            with admission.admit("r", 1):
                pass
            end = asyncio.create_task(admission.drain(1000))
            await asyncio.sleep(0)
            engines.client.dead = "killed"
            admission.resume()
            return await asyncio.wait_for(end, 20)

        assert asyncio.run(main()) is False

    def test_the_wait_has_a_time_limit(self):
        admission, _, _ = make_admission()
        with admission.admit("r", 1):
            pass
        assert asyncio.run(admission.drain(0)) is False
        admission.end("r")
        assert asyncio.run(admission.drain(0)) is True


class TestTurns:
    """A flood of requests leaves the event loop to others after every few of them."""

    @staticmethod
    async def flood(admission: Admission, count: int, num_chars: int = 0) -> list[int]:
        """Number of requests admitted in each iteration of the loop, of `count` that arrive together."""
        let_through: list[int] = []
        turns: list[int] = []

        async def request(number: int) -> None:
            await admission.turn(num_chars)
            let_through.append(number)

        tasks = [asyncio.create_task(request(number)) for number in range(count)]
        while not all(task.done() for task in tasks):
            before = len(let_through)
            await asyncio.sleep(0)
            turns.append(len(let_through) - before)
        assert let_through == sorted(let_through)  # first come, first served
        return turns

    def test_a_flood_is_let_through_a_few_at_a_time(self):
        admission, _, _ = make_admission()
        turns = asyncio.run(self.flood(admission, 1000))
        assert sum(turns) == 1000
        assert max(turns) == MAX_WORK_PER_TURN

    def test_requests_count_by_the_length_of_their_texts(self):
        admission, _, _ = make_admission()
        texts = MAX_WORK_PER_TURN // 4
        turns = asyncio.run(self.flood(admission, 3 * texts, num_chars=3 * CHARS_PER_REQUEST))
        assert [turn for turn in turns if turn] == [texts] * 3

    def test_one_text_beyond_all_bounds_has_a_turn_of_its_own(self):
        admission, _, _ = make_admission()
        chars = 2 * MAX_WORK_PER_TURN * CHARS_PER_REQUEST
        turns = asyncio.run(self.flood(admission, 3, num_chars=chars))
        assert [turn for turn in turns if turn] == [1, 1, 1]

    def test_few_requests_wait_for_no_turn(self):
        admission, _, _ = make_admission()
        turns = asyncio.run(self.flood(admission, MAX_WORK_PER_TURN))
        assert turns[0] == MAX_WORK_PER_TURN

    def test_requests_that_come_one_after_another_wait_for_no_turn(self):
        admission, _, _ = make_admission()

        async def main() -> list[list[int]]:
            return [await self.flood(admission, 1) for _ in range(5 * MAX_WORK_PER_TURN)]

        waited = [number for number, turns in enumerate(asyncio.run(main())) if turns != [1]]
        assert waited == []

    def test_one_that_is_cancelled_holds_up_no_other(self):
        admission, _, _ = make_admission()

        async def main() -> None:
            tasks = [asyncio.create_task(admission.turn(0)) for _ in range(2 * MAX_WORK_PER_TURN)]
            await asyncio.sleep(0)
            for task in tasks[MAX_WORK_PER_TURN + 8 : MAX_WORK_PER_TURN + 58]:
                task.cancel()
            async with asyncio.timeout(10):
                await asyncio.gather(*tasks, return_exceptions=True)
            assert [task.cancelled() for task in tasks].count(True) == 50

        asyncio.run(main())

    def test_requests_that_were_held_while_paused_are_admitted_in_turns(self):
        admission, _, _ = make_admission()
        admission.pause()
        turns: list[int] = []
        admitted: list[int] = []

        async def request(number: int) -> None:
            await admission.wait(Ticket(1))
            admitted.append(number)

        async def main() -> None:
            tasks = [
                asyncio.create_task(request(number)) for number in range(3 * MAX_WORK_PER_TURN)
            ]
            await asyncio.sleep(0)
            admission.resume()
            while not all(task.done() for task in tasks):
                before = len(admitted)
                await asyncio.sleep(0)
                turns.append(len(admitted) - before)

        asyncio.run(main())
        assert len(admitted) == 3 * MAX_WORK_PER_TURN
        assert max(turns) <= MAX_WORK_PER_TURN
