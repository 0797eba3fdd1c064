"""Questions of one front end to the others, through their supervisor (AF-17, AF-18)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenonry_scale_out import front_ends
from tenonry_scale_out.front_ends import FrontEnds
from tenonry_scale_out.messages import FrontEndAnswer, FrontEndQuestion, TaskDone

ASKER = b"1.1"


class Servers:
    """Front ends with so many requests; None: it does not answer. `ends`: the silent ones end instead. The others
    answer after `delay_s`.
    """

    def __init__(self, *num_requests: int | None, ends: bool = False, delay_s: float = 0.0) -> None:
        self.serving = {f"{index}.1".encode(): index for index in range(1, len(num_requests) + 1)}
        self._counts = dict(zip(self.serving, num_requests, strict=True))
        self._ends = ends
        self._delay_s = delay_s
        self.asked: list[tuple[bytes, str]] = []
        self.answers: list[FrontEndAnswer] = []
        self.front_ends = FrontEnds(lambda: self.serving, self.send)

    def send(self, identity: bytes, message: Any) -> None:
        if isinstance(message, FrontEndAnswer):
            assert identity == ASKER
            self.answers.append(message)
            return
        self.asked.append((identity, message.step))
        count = self._counts[identity]
        loop = asyncio.get_running_loop()
        if count is not None:
            done = TaskDone(message.number, num_requests=count)
            loop.call_later(self._delay_s, self.front_ends.done, done)
        elif self._ends:
            del self.serving[identity]
            loop.call_soon(self.front_ends.left, identity)

    def ask(self, step: Any = "drained", patience_s: float = 0.0) -> FrontEndAnswer:
        asyncio.run(self.front_ends.answer(ASKER, FrontEndQuestion(7, step, patience_s)))
        (answer,) = self.answers
        return answer


def test_the_others_are_asked_and_their_answers_added():
    servers = Servers(100, 2, 3)
    assert servers.ask() == FrontEndAnswer(7, 5)
    assert servers.asked == [(b"2.1", "drained"), (b"3.1", "drained")]


def test_one_alone_asks_nobody():
    servers = Servers(100)
    assert servers.ask("forget_media") == FrontEndAnswer(7)
    assert servers.asked == []


def test_one_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(front_ends, "ANSWER_TIMEOUT_S", 0.01)
    answer = Servers(100, None, 3, None).ask()
    assert answer.error == "API server 2, 4 did not answer within 0.01 s"


def test_one_that_waits_for_its_requests_is_waited_for(monkeypatch):
    monkeypatch.setattr(front_ends, "ANSWER_TIMEOUT_S", 0.01)
    assert Servers(100, 3, delay_s=0.1).ask(patience_s=60.0) == FrontEndAnswer(7, 3)


@pytest.mark.timeout(5)
def test_one_that_ends_has_no_requests_left():
    assert Servers(100, None, 3, ends=True).ask() == FrontEndAnswer(7, 3)
