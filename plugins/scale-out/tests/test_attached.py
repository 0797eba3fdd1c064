"""Several front ends that share engines through a supervisor's hub, all in this process but for the engines."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenonry.client import engine_listener
from tenonry.client.async_llm import AsyncLLM
from tenonry.errors import ConfigError, EngineDeadError, QueueFullError
from tenonry.stats import SchedulerStats
from tenonry_scale_out.attached import AttachedEngines
from tenonry_scale_out.channel import ControlLink
from tenonry_scale_out.hub import Hub
from tenonry_scale_out.messages import Attachment
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, served_config, tokens

pytestmark = pytest.mark.timeout(60)
RECORDING = "tenonry_testkit.fakes:RecordingStatLogger"


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110 - many conditions, no event for most
        await asyncio.sleep(0.01)


async def requests_are(front_end: AsyncLLM, running: int, engine: int = 0) -> None:
    """Until one engine runs this many."""
    while (await front_end.engine_calls.call("request_counts"))[engine] != [running, 0]:  # noqa: ASYNC110 - as above
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
    def recorded(self) -> Any:
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
            )  # the recording logger renders none, but got every record
            iterations = [
                record.iteration
                for record in shared.recorded.records
                if record.iteration is not None
            ]
            assert sum(iteration.num_prompt_tokens for iteration in iterations) == 64
            assert sum(iteration.num_generation_tokens for iteration in iterations) == 640
            assert sum(len(iteration.finished) for iteration in iterations) == 32
            assert {record.engine_index for record in shared.recorded.records} == {0, 1}
            assert any(record.scheduler is not None for record in shared.recorded.records)
            assert one.info == two.info == shared.hub.info
            assert sorted(one.engine_pids) == ["engine 0", "engine 1"]
            assert one.stat_loggers == {}
            assert await one.is_tracing_enabled() is False

        shared.run(main)
        assert [info.engine_indexes for info in shared.recorded.infos] == [(0, 1)]

    @pytest.mark.parametrize("model", ["fake", "fake-lockstep"])
    def test_the_number_of_engines_changes_for_all_front_ends(self, share, model):
        """AF-19: an engine that leaves first finishes the requests of every front end."""

        async def main(shared: Shared) -> None:
            one, two = await shared.attach(1), await shared.attach(2)
            await one.scale(2)
            await until(lambda: one.info.engine_indexes == two.info.engine_indexes == (0, 1))
            second = {"data_parallel_rank": 1}
            for engine in (one, two):
                assert await collect(engine, [7], params(), "r", **second) == tokens([7], params())
            sampling = params(max_tokens=300)
            running = asyncio.ensure_future(collect(two, [1], sampling, "long", **second))
            await requests_are(two, 1, engine=1)
            with pytest.raises(
                TimeoutError,
                match=r"1 requests still run on engines \[1\] after 0 s; nothing changed",
            ):
                await one.scale(1, 0)
            assert await collect(one, [8], params(), "r", **second) == tokens([8], params())
            await one.scale(1)
            assert await running == tokens([1], sampling)
            await until(lambda: one.info.engine_indexes == two.info.engine_indexes == (0,))
            for engine in (one, two):
                assert await collect(engine, [9], params(), "r") == tokens([9], params())
                assert sorted(engine.engine_pids) == ["engine 0"]
            with pytest.raises(ConfigError, match="0 engines: at least 1"):
                await two.scale(0)

        share(model=model, engine_recovery="resume").run(main)

    def test_requests_of_the_other_front_ends_keep_engines_busy(self, share):
        """AF-18."""

        async def main(shared: Shared) -> None:
            one, two = await shared.attach(1), await shared.attach(2)
            sampling = params(max_tokens=400)
            running = asyncio.ensure_future(collect(two, [1], sampling, "long"))
            await requests_are(two, 1)
            assert one.num_unfinished_requests == 0
            with pytest.raises(TimeoutError, match="1 requests still run after 0 s"):
                await one.wait_for_requests_to_drain(0)
            assert two.num_unfinished_requests == 1
            await one.wait_for_requests_to_drain()
            assert two.num_unfinished_requests == 0
            assert await running == tokens([1], sampling)

        share().run(main)

    def test_files_of_all_front_ends_are_forgotten(self, share):
        """AF-17."""

        async def main(shared: Shared) -> None:
            one, two = await shared.attach(1), await shared.attach(2)
            await one.reset_mm_cache()
            assert one.io_processor.num_resets == two.io_processor.num_resets == 1

        share(io_processor="front_end_fakes:ForgettingProcessor").run(main)

    def test_other_calls_reach_the_loggers(self, share):
        shared = share(max_num_seqs=1, max_num_queued_reqs=3)  # room for two in each
        shared.hub._stats.traces = True

        async def main(shared: Shared) -> None:
            engine = await shared.attach(1)
            full = pytest.raises(
                QueueFullError, match="the capacity is 2 with max_num_queued_reqs=3"
            )
            with engine.admission.admit("held", 2), full:
                await collect(engine, [3], params(), "r")
            await engine.do_log_stats()
            await engine.render_metrics()
            assert shared.recorded.rejections == ["queue_full"]
            assert "log" in shared.recorded.calls
            assert await engine.is_tracing_enabled() is True

        shared.run(main)

    def test_requests_of_one_that_is_gone_are_aborted_and_its_successor_starts_anew(self, share):
        shared = share()

        async def main(shared: Shared) -> None:
            one, two = await shared.attach(1), await shared.attach(2)
            lost = asyncio.ensure_future(collect(one, [3], params(max_tokens=500), "lost"))
            kept = asyncio.ensure_future(collect(two, [4], params(max_tokens=500), "kept"))
            await requests_are(two, 2)
            assert shared.hub.detach(1) == ""
            await requests_are(two, 1)
            shared.serving.clear()
            again = await shared.attach(1)
            assert await collect(again, [5], params(), "r") == tokens([5], params())
            assert await kept == tokens([4], params(max_tokens=500))
            lost.cancel()

        shared.run(main)

    @pytest.mark.parametrize("model", ["fake", "fake-lockstep"])
    def test_every_front_end_hears_of_a_death(self, share, model):
        """Independent engines die alone, those that step together die together."""
        shared = share(model=model, data_parallel_size=2, engine_recovery="end")

        async def main(shared: Shared) -> None:
            ends = [await shared.attach(1), await shared.attach(2)]
            long = params(max_tokens=400)
            lost = [
                asyncio.ensure_future(collect(end, [3], long, "lost", data_parallel_rank=1))
                for end in ends
            ]
            await until(
                lambda: any(
                    record.scheduler.num_running
                    for record in shared.recorded.records
                    if record.engine_index == 1 and record.scheduler
                )
            )
            os.kill(ends[0].engine_pids["engine 1"], signal.SIGKILL)
            for error in await asyncio.gather(*lost, return_exceptions=True):
                assert isinstance(error, EngineDeadError)
                assert "engine 1 (pid" in str(error)
                assert "SIGKILL" in str(error)
            if model == "fake":
                assert [await collect(end, [5], params(), "r") for end in ends] == 2 * [
                    tokens([5], params())
                ]
                await ends[0].render_metrics()  # the supervisor has got every record, then
                finished = [
                    one
                    for record in shared.recorded.records
                    if record.iteration
                    for one in record.iteration.finished
                ]
                assert [one.finish_reason for one in finished if one.request_id == "lost"] == [
                    "error",
                    "error",
                ]
                seen = [
                    record.scheduler
                    for record in shared.recorded.records
                    if record.engine_index == 1 and record.scheduler
                ]
                assert any(stats.num_running for stats in seen)
                assert seen[-1] == SchedulerStats()  # a dead engine has nothing to do
                assert shared.hub.dead is None
                os.kill(ends[0].engine_pids["engine 0"], signal.SIGKILL)
            await until(lambda: all(end.errored for end in ends))

        shared.run(main)
        eventually(lambda: len(shared.deaths) == 2)
        assert "SIGKILL" in str(shared.hub.dead)

    def test_an_engine_may_be_back_before_its_last_outputs_were_awaited(
        self, share, monkeypatch, caplog
    ):
        """Its crashes count all the same: the request is a suspect after the second one."""
        monkeypatch.setattr(engine_listener, "DRAIN_GRACE_S", 30.0)
        monkeypatch.setattr(logging.getLogger("tenonry"), "propagate", True)
        slow = {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {"delay_s": 0.05}}
        shared = share(worker=slow, engine_recovery="resume")

        async def main(shared: Shared) -> None:
            one = await shared.attach(1)
            wanted = params(max_tokens=40)
            stream = one.generate([3], wanted, "r")
            got: list[int] = []
            for epoch in (1, 2):
                got += (await anext(stream)).outputs[0].token_ids
                os.kill(shared.hub.pids()["engine 0"], signal.SIGKILL)
                await until(lambda past=epoch: one.engine_core.engines[0].epoch > past)
            async for output in stream:
                got += output.outputs[0].token_ids
            assert got == tokens([3], wanted)

        shared.run(main)
        assert caplog.text.count("request r was running during 2 consecutive crashes") == 1

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
