"""The capacity of one front end, and its share if there are several."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tenonry.client.admission import CHARS_PER_REQUEST, MAX_WORK_PER_TURN, Admission, Ticket
from tenonry.config import EngineConfig
from tenonry.errors import QueueFullError, RequestError


def make_admission(num_engines: int = 1, num_clients: int = 1) -> tuple[Admission, Any, list[str]]:
    """Admission of 8 sequences per engine and 4 in the queue; the engines' info; the reasons given to loggers."""

    class Outputs:
        num_completions = 0

        def get(self, _: str) -> None: ...

    config = EngineConfig(model="m", max_num_seqs=8, max_num_queued_reqs=4)
    reasons: list[str] = []
    stats = SimpleNamespace(submit=lambda _, reason: reasons.append(reason))
    info = SimpleNamespace(engine_indexes=tuple(range(num_engines)))
    client = SimpleNamespace(check_alive=lambda: None)
    engines: Any = SimpleNamespace(stats=stats, info=info, count=num_clients, client=client)
    return Admission(config, Outputs(), engines), info, reasons  # type: ignore[arg-type]


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
    admission, info, reasons = make_admission(num_engines, num_clients)
    with admission.admit("held2", capacity):
        with (
            pytest.raises(QueueFullError, match=f"the capacity is {capacity}"),
            admission.admit("held3", 1),
        ):
            raise AssertionError
        info.engine_indexes += (num_engines,)
        with admission.admit("held4", 1):
            pass
    assert reasons == ["queue_full"]


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
            await admission.wait(Ticket())
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
