"""Several front ends that share engines through a supervisor's hub, all in this process but for the engines."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenonry.client.async_llm import AsyncLLM
from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError, QueueFullError, TenonryError, Unsupported
from tenonry.info import ModelInfo, PluginRecord
from tenonry.messages import EngineCoreOutputs
from tenonry.plugin.plan import PluginPlan
from tenonry.stats import IterationStats, SchedulerStats, StatRecord
from tenonry_front_ends import attached
from tenonry_front_ends.attached import AttachedEngines, StatForwarder
from tenonry_front_ends.channel import ControlLink, ControlRouter
from tenonry_front_ends.hub import Hub
from tenonry_front_ends.messages import (
    AskMetrics,
    Attachment,
    Heard,
    LoggerCall,
    Metrics,
    Report,
    Stop,
)
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, served_config, tokens

pytestmark = pytest.mark.timeout(60)
RECORDING = "tenonry_testkit.fakes:RecordingStatLogger"
MODEL = ModelInfo(name="m", path="", architecture="A", max_model_len=8, vocab_size=8)


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110 - many conditions, no event for most
        await asyncio.sleep(0.01)


async def requests_are(engine: AsyncLLM, running: int) -> None:
    """Until the only engine runs this many."""
    while await engine._calls.call("request_counts") != [[running, 0]]:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.01)


class Shared:
    """A hub and front ends attached to it, on one event loop."""

    def __init__(self, **values: Any) -> None:
        self.runner = asyncio.Runner()
        self.config = served_config(**{"stat_loggers": (RECORDING,), **values})
        self.deaths: list[str] = []
        self.serving: list[int] = []
        self.folders: list[str] = []
        self.links: list[ControlLink] = []
        self.front_ends: list[AsyncLLM] = []
        self.hub = Hub(
            self.config, 2, on_connected=self.serving.append, on_engine_died=self.deaths.append
        )
        self.hub.start()

    @property
    def heard(self) -> Any:
        (logger,) = self.hub._stats.loggers.values()
        return logger

    async def attach(self, index: int) -> AsyncLLM:
        attachment = self.hub.attachment(index)
        folder = os.path.dirname(attachment.control_address.removeprefix("ipc://"))  # noqa: PTH120
        sent = msgspec.json.decode(msgspec.json.encode(attachment), type=Attachment)
        self.links.append(ControlLink(sent))
        engines = AttachedEngines(self.config, self.links[-1])
        engine = await asyncio.to_thread(AsyncLLM, self.config, engines=engines)
        self.front_ends.append(engine)
        engine.listen()
        await until(lambda: index in self.serving)
        self.folders.append(folder)
        return engine

    def run(self, main: Any) -> Any:
        async def all_of_it() -> Any:
            self.hub.listen(asyncio.get_running_loop())
            return await main(self)

        return self.runner.run(all_of_it())

    def close(self) -> None:
        assert not any(Path(folder).exists() for folder in self.folders)
        for engine, link in zip(self.front_ends, self.links, strict=True):
            engine.shutdown()
            link.close()
        self.hub.shutdown()
        self.runner.close()


@pytest.fixture
def share(fake_model_site: Any) -> Iterator[Any]:
    made: list[Shared] = []

    def start(**values: Any) -> Shared:
        made.append(Shared(**values))
        return made[-1]

    yield start
    for shared in made:
        shared.close()


class TestHub:
    def test_front_ends_share_engines_and_their_numbers_add_up(self, share):
        shared = share(data_parallel_size=2)

        async def main(shared: Shared) -> None:
            one, two = await shared.attach(1), await shared.attach(2)
            jobs = [
                collect(engine, [number + 1, 5], params(max_tokens=20), f"{number}")
                for engine in (one, two)
                for number in range(16)
            ]
            answers = await asyncio.gather(*jobs)
            assert answers == 2 * [
                tokens([number + 1, 5], params(max_tokens=20)) for number in range(16)
            ]
            assert (
                await two.render_metrics() is None
            )  # the recording logger renders none, but heard all there is
            iterations = [
                record.iteration for record in shared.heard.records if record.iteration is not None
            ]
            assert sum(iteration.num_prompt_tokens for iteration in iterations) == 64
            assert sum(iteration.num_generation_tokens for iteration in iterations) == 640
            assert sum(len(iteration.finished) for iteration in iterations) == 32
            assert {record.engine_index for record in shared.heard.records} == {0, 1}
            assert any(record.scheduler is not None for record in shared.heard.records)
            assert one.info == two.info == shared.hub.info
            assert sorted(one.engine_pids) == ["engine 0", "engine 1"]
            assert one.stat_loggers == {}
            assert await one.is_tracing_enabled() is False
            with pytest.raises(
                Unsupported, match="3 engines: with several API servers their number is fixed"
            ):
                await one.scale(3)

        shared.run(main)
        assert [info.engine_indexes for info in shared.heard.infos] == [(0, 1)]

    def test_other_calls_reach_the_loggers(self, share):
        shared = share(max_num_seqs=1, max_num_queued_reqs=3)  # room for two in each
        shared.hub._stats.traces = True

        async def main(shared: Shared) -> None:
            engine = await shared.attach(1)
            full = pytest.raises(
                QueueFullError, match="the capacity is 2 with max_num_queued_reqs=3"
            )
            with engine._admission.holding(2), full:
                await collect(engine, [3], params(), "r")
            await engine.do_log_stats()
            await engine.render_metrics()
            assert shared.heard.rejections == ["queue_full"]
            assert "log" in shared.heard.calls
            assert await engine.is_tracing_enabled() is True

        shared.run(main)

    def test_requests_of_one_that_is_gone_are_aborted_and_its_successor_starts_anew(self, share):
        shared = share()

        async def main(shared: Shared) -> None:
            one, two = await shared.attach(1), await shared.attach(2)
            lost = asyncio.ensure_future(collect(one, [3], params(max_tokens=400), "lost"))
            kept = asyncio.ensure_future(collect(two, [4], params(max_tokens=300), "kept"))
            await requests_are(two, 2)
            assert shared.hub.gone(1) == ""
            await requests_are(two, 1)
            shared.serving.clear()
            again = await shared.attach(1)
            assert await collect(again, [5], params(), "r") == tokens([5], params())
            assert await kept == tokens([4], params(max_tokens=300))
            lost.cancel()

        shared.run(main)

    @pytest.mark.parametrize("model", ["fake", "fake-lockstep"])
    def test_every_front_end_hears_of_a_death(self, share, model):
        """Independent engines die alone, those that step together die together."""
        shared = share(model=model, data_parallel_size=2)

        async def main(shared: Shared) -> None:
            ends = [await shared.attach(1), await shared.attach(2)]
            long = params(max_tokens=400)
            lost = [
                asyncio.ensure_future(collect(end, [3], long, "lost", data_parallel_rank=1))
                for end in ends
            ]
            await asyncio.sleep(0.2)
            os.kill(ends[0].engine_pids["engine 1"], signal.SIGKILL)
            for error in await asyncio.gather(*lost, return_exceptions=True):
                assert isinstance(error, EngineDeadError)
                assert "engine 1 (pid" in str(error)
                assert "SIGKILL" in str(error)
            if model == "fake":
                assert [await collect(end, [5], params(), "r") for end in ends] == 2 * [
                    tokens([5], params())
                ]
                await ends[0].render_metrics()  # the supervisor has heard all there is, then
                finished = [
                    one
                    for record in shared.heard.records
                    if record.iteration
                    for one in record.iteration.finished
                ]
                assert [one.finish_reason for one in finished if one.request_id == "lost"] == [
                    "error",
                    "error",
                ]
                seen = [
                    one.scheduler
                    for one in shared.heard.records
                    if one.engine_index == 1 and one.scheduler
                ]
                assert any(one.num_running for one in seen)
                assert seen[-1] == SchedulerStats()  # an engine that is gone has nothing to do
                assert shared.hub.dead is None
                os.kill(ends[0].engine_pids["engine 0"], signal.SIGKILL)
            await until(lambda: all(end.errored for end in ends))

        shared.run(main)
        eventually(lambda: len(shared.deaths) == 2)
        assert "SIGKILL" in str(shared.hub.dead)

    def test_stop_reaches_servers_that_serve(self, share):
        shared = share()

        async def main(shared: Shared) -> None:
            await shared.attach(1)
            told: list[bool] = []
            shared.links[0].on_stop = told.append
            shared.hub.attachment(2)  # has not come
            assert shared.hub.stop_servers(abort=True) == {1}
            await until(lambda: told == [True])

        shared.run(main)


class Link:
    """A link whose other end is the test."""

    def __init__(self, *loggers: str) -> None:
        plan = PluginPlan(
            tuple(PluginRecord(kind="stat_logger", name=name, target="m:C") for name in loggers)
        )
        self.attachment = Attachment(
            index=1, count=2, identity="1.1", control_address="", input_address="", output_address="", plan=plan,
            model=MODEL,
        )  # fmt: skip
        self.sent: list[Any] = []
        self.send = self.sent.append


def forwarder(link: Link, *iterations: IterationStats) -> StatForwarder:
    made = StatForwarder(EngineConfig(model="m"), link)  # type: ignore[arg-type]
    waiting = list(iterations)
    made._take = lambda: {1: waiting.pop(0)} if waiting else {}
    return made


class TestForwarder:
    def test_it_traces_if_a_logger_of_the_supervisor_does(self):
        """AF-22."""
        link = Link("x")
        assert forwarder(link).traces is False
        link.attachment = msgspec.structs.replace(link.attachment, traces=True)
        assert forwarder(link).traces is True

    def test_numbers_go_once_and_nothing_is_no_report(self):
        link = Link("x")
        stats = forwarder(link, IterationStats(num_prompt_tokens=3))
        stats.flush()
        stats.flush()
        (report,) = link.sent
        (record,) = report.records
        assert isinstance(record, StatRecord)
        assert (record.engine_index, record.iteration.num_prompt_tokens, record.scheduler) == (
            1,
            3,
            None,
        )
        stats.flush(7)
        assert link.sent[1] == Report([], flush=7)

    def test_numbers_of_an_engine_that_died_go_with_the_others(self):
        link = Link("x")
        stats = forwarder(link, IterationStats(num_prompt_tokens=3))
        stats.observe(EngineCoreOutputs(engine_index=0), IterationStats(num_prompt_tokens=4))
        assert link.sent == []
        stats.flush()
        stats.flush()
        (report,) = link.sent
        assert [
            (record.engine_index, record.iteration.num_prompt_tokens) for record in report.records
        ] == [
            (0, 4),
            (1, 3),
        ]

    def test_rejections_are_counted_and_other_calls_go_at_once_in_order(self):
        link = Link("x")
        stats = forwarder(link)
        for _ in range(1000):
            stats.submit("record_rejection", "queue_full")
        assert link.sent == []
        stats.submit("record_sleep_state", True, 1)
        assert link.sent == [
            Report([], [(LoggerCall("record_rejection", ("queue_full",)), 1000),
                        (LoggerCall("record_sleep_state", (True, 1)), 1)])
        ]  # fmt: skip
        assert (
            msgspec.msgpack.decode(msgspec.msgpack.encode(link.sent[0]), type=Report)
            == link.sent[0]
        )

    def test_without_loggers_nothing_is_told(self):
        link = Link()
        stats = forwarder(link)
        stats.submit("record_rejection", "queue_full")
        stats.observe(EngineCoreOutputs(), IterationStats())
        stats.flush()
        assert (link.sent, stats.enabled) == ([], False)

    def test_what_a_silent_supervisor_does_not_take_in_is_dropped_counted_and_reported(
        self, monkeypatch
    ):
        monkeypatch.setattr(attached, "MAX_UNHEARD", 2)
        link = Link("x")
        stats = forwarder(
            link, *(IterationStats(num_prompt_tokens=number) for number in range(1, 7))
        )
        for _ in range(5):
            stats.flush()
        assert [report.records[0].iteration.num_prompt_tokens for report in link.sent] == [1, 2]
        assert stats.dropped == 3
        stats.heard()
        stats.flush()
        assert (link.sent[-1].records[0].iteration.num_prompt_tokens, link.sent[-1].dropped) == (
            6,
            3,
        )

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            ({"content": b"x", "content_type": "t"}, (b"x", "t")),
            ({}, None),
            ({"error": "no"}, TenonryError),
        ],
    )
    def test_metrics_are_asked_for(self, answer, expected):
        link = Link("x")
        stats = forwarder(link)

        async def main() -> None:
            asked = asyncio.ensure_future(stats.render())
            await asyncio.sleep(0)
            stats.rendered(Metrics(99))  # to a question that nobody asked
            (question,) = link.sent
            assert isinstance(question, AskMetrics)
            stats.rendered(Metrics(question.call_id, **answer))
            if expected is TenonryError:
                with pytest.raises(TenonryError, match="could not render metrics: no"):
                    await asked
            else:
                assert await asked == expected

        asyncio.run(main())

    def test_metrics_of_a_silent_supervisor_are_an_error(self, monkeypatch):
        monkeypatch.setattr(attached, "METRICS_TIMEOUT_S", 0.01)
        with pytest.raises(TenonryError, match="gave no metrics within"):
            asyncio.run(forwarder(Link("x")).render())


class TestEnds:
    """The control channel itself."""

    def test_messages_go_both_ways_and_bad_ones_are_dropped(self, tmp_path, caplog):
        address = f"ipc://{tmp_path}/c"
        got: list[Any] = []
        router = ControlRouter(lambda *message: got.append(message))
        router.bind(address)
        attachment = msgspec.structs.replace(
            Link().attachment, identity="1.5", control_address=address
        )
        link = ControlLink(attachment)
        try:
            for frames in ([b"\xc1"], [b"\x91\xa2\xdbx"], [b"a", b"b"], [b""]):
                link._socket.send_multipart(frames)
            link.send(AskMetrics(3))
            eventually(lambda: router.read(20) or got)
            assert got == [(b"1.5", AskMetrics(3))]
            assert caplog.text.count("dropped a message of API server 1.5") == 4
            router.send(b"1.5", Stop(False))
            router.send(b"9.9", Heard())  # is not there
            assert link.receive(5000) == Stop(False)
            assert link.receive() is None
        finally:
            link.close()
            link.send(AskMetrics(4))  # too late, and no error
            router.close()
