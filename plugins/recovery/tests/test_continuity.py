"""Engines that die and restart: every stream resumes where it was, token for token (AF-24)."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from typing import Any

import psutil
import pytest

from tenonry.errors import (
    EngineDeadError,
    EngineGenerateError,
    LaunchError,
    QueueFullError,
    RequestError,
)
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.launch.supervise import STOP_SIGNAL
from tenonry.sampling_params import SamplingParams
from tenonry.stats import FinishedRequestStats, RecoveryStats
from tenonry_recovery import restarts
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.fakes.tokens import TokenModel
from tenonry_testkit.kernel.mortal import set_fuse
from tenonry_testkit.kernel.served import Served, served_config
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children")]

FAULTY = "tenonry_testkit.kernel.faulty:FaultyWorker"
LONG = params(max_tokens=60)
HARMLESS = params(max_tokens=60, allowed_token_ids=list(range(100, 200)))


def worker(**options: Any) -> dict[str, Any]:
    return {"name": FAULTY, "options": {"delay_s": 0.01, **options}}


def halt(served: Served) -> None:
    """Stop engine 0; it does nothing more when this returns."""
    kill(served, number=signal.SIGSTOP)
    eventually(lambda: psutil.Process(served.pid).status() == psutil.STATUS_STOPPED)


async def begun(
    served: Served, prompts: list[list[int]], sampling: SamplingParams = LONG, **fields: Any
) -> list[asyncio.Task]:
    """Streams that have delivered something each."""
    started = [asyncio.Event() for _ in prompts]

    async def read(number: int) -> list[int]:
        got: list[int] = []
        stream = served.engine.generate(prompts[number], sampling, f"r{number}", **fields)
        async for output in stream:
            got += output.outputs[0].token_ids
            started[number].set()
        return got

    tasks = [asyncio.ensure_future(read(number)) for number in range(len(prompts))]
    await asyncio.gather(*(event.wait() for event in started))
    return tasks


def kill(served: Served, index: int = 0, number: int = signal.SIGKILL) -> None:
    os.kill(served.engine.engine_pids[f"engine {index}"], number)


class TestOneEngine:
    def test_sixteen_streams_go_on_after_sigkill(self, serve):
        served = serve(worker=worker())
        prompts = [[number, 5] for number in range(16)]

        async def main() -> list[list[int]]:
            tasks = await begun(served, prompts)
            kill(served)
            return await asyncio.gather(*tasks)

        assert served.run(main()) == [tokens(prompt, LONG) for prompt in prompts]
        assert not served.engine.errored
        assert served.run(collect(served.engine, [3], params(), "after")) == tokens([3], params())

    # Twelve tokens take as many steps without rounds; the long prompt takes four in any case.
    @pytest.mark.parametrize(("round_tokens", "least"), [(1, 12), (8, 4)])
    def test_again_and_again_at_any_step(self, round_tokens, least, serve, tmp_path):
        """The engine kills itself in the step that the file counts down to; what is delivered is never repeated."""
        fuse = tmp_path / "fuse"
        served = serve(
            engine_recovery={"name": "resume", "options": {"max_restarts": 1000}},
            worker={
                "name": "tenonry_testkit.kernel.mortal:MortalWorker",
                "options": {"fuse": str(fuse)},
            },
            max_num_batched_tokens=64,  # the long prompt takes several steps
            max_round_tokens=round_tokens,
        )
        requests: dict[str, tuple[list[int], SamplingParams]] = {
            "greedy": ([1, 2], params(max_tokens=12)),
            "seeded": ([3, 4], params(max_tokens=12, temperature=0.8, seed=5)),
            "least": ([5], params(max_tokens=14, min_tokens=10, stop_token_ids=list(range(128)))),
            "long": (list(range(1, 200)), params(max_tokens=6)),
            "some": ([6, 7], params(max_tokens=9, allowed_token_ids=[11, 12, 13])),
        }
        wanted = {
            name: TokenModel(512).complete(
                prompt, sampling, max_model_len=512, stop_ids=sampling.stop_token_ids or ()
            )
            for name, (prompt, sampling) in requests.items()
        }

        async def run(step: int) -> None:
            set_fuse(fuse, step)
            got = await asyncio.gather(
                *(
                    collect(served.engine, prompt, sampling, name)
                    for name, (prompt, sampling) in requests.items()
                )
            )
            assert dict(zip(requests, got, strict=True)) == {
                name: each.token_ids for name, each in wanted.items()
            }, step

        for step in itertools.count():
            served.run(run(step))
            if fuse.exists():  # the run has no such step
                break
        assert step >= least

    def test_requests_that_come_meanwhile_wait_in_order(self, serve):
        served = serve(worker=worker())

        async def main() -> list[list[int]]:
            tasks = await begun(served, [[1], [2]])
            kill(served)
            while served.engine.is_serving:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            late = [
                asyncio.ensure_future(collect(served.engine, [number], params(), f"late {number}"))
                for number in range(3, 6)
            ]
            await asyncio.sleep(0)
            assert not served.engine.errored
            await served.engine.check_health()
            return await asyncio.gather(*tasks, *late)

        got = served.run(main())
        assert got == [
            *(tokens([number], LONG) for number in (1, 2)),
            *(tokens([number], params()) for number in range(3, 6)),
        ]
        assert served.engine.is_serving

    def test_the_queue_stays_bounded_meanwhile(self, serve):
        served = serve(worker=worker(), max_num_seqs=2, max_num_queued_reqs=1)

        async def main() -> None:
            tasks = await begun(served, [[1], [2]])
            kill(served)
            late = asyncio.ensure_future(collect(served.engine, [3], params(), "late"))
            await asyncio.sleep(0)
            with pytest.raises(QueueFullError):
                await collect(served.engine, [4], params(), "too many")
            assert await late == tokens([3], params())
            await asyncio.gather(*tasks)

        served.run(main())

    def test_a_request_can_be_aborted_while_it_waits(self, serve):
        served = serve(worker=worker())

        async def main() -> None:
            tasks = await begun(served, [[1], [2]])
            kill(served)
            while served.engine.is_serving:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            late = asyncio.ensure_future(collect(served.engine, [3], params(), "late"))
            await asyncio.sleep(0.06)  # the streams of the engine wait, too
            await served.engine.abort(["late", "r1"])
            assert await late == []
            assert await tasks[0] == tokens([1], LONG)
            assert len(await tasks[1]) < 60
            await served.counts_are(0, 0)

        served.run(main())

    def test_calls_fail_meanwhile_and_work_afterwards(self, serve):
        served = serve(worker=worker())

        async def main() -> None:
            tasks = await begun(served, [[1]])
            kill(served)
            while served.engine.engine_core.engines:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            with pytest.raises(EngineDeadError, match=r"engines \[0\] failed and are restarting"):
                await served.engine.reset_prefix_cache()
            await asyncio.gather(*tasks)
            await served.engine.reset_prefix_cache()

        served.run(main())

    def test_adapters_are_loaded_again(self, serve):
        served = serve(worker=worker(), max_loras=1)

        async def main() -> None:
            await served.engine.add_lora("one", "somewhere")
            tasks = await begun(served, [[1]])
            kill(served)
            await asyncio.gather(*tasks)
            assert await served.engine.collective_rpc("list_loras") == [["one"]]

        served.run(main())

    def test_before_the_first_request(self, serve):
        served = serve()
        kill(served)
        eventually(lambda: not served.engine.is_serving)
        assert served.run(collect(served.engine, [1], params(), "r")) == tokens([1], params())

    def test_an_engine_that_hangs(self, serve):
        """SIGSTOP for longer than --step-timeout."""
        served = serve(worker=worker(), step_timeout=1)

        async def main() -> list[list[int]]:
            tasks = await begun(served, [[1], [2]])
            kill(served, number=signal.SIGSTOP)
            return await asyncio.gather(*tasks)

        assert served.run(main()) == [tokens([1], LONG), tokens([2], LONG)]

    @pytest.mark.nightly
    def test_an_engine_that_is_stopped_in_a_call(self, serve):
        """A call may take any time, but its process may not be stopped for longer than --step-timeout."""
        served = serve(worker=worker(), step_timeout=1)

        async def main() -> list[int]:
            (task,) = await begun(served, [[1]])
            call = asyncio.ensure_future(served.engine.collective_rpc("nap", args=(600,)))
            await asyncio.sleep(0.5)  # the engine has begun with it
            kill(served, number=signal.SIGSTOP)
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await call
            return await task

        assert served.run(main()) == tokens([1], LONG)

    def test_an_engine_that_was_asked_to_end(self, serve):
        served = serve(worker=worker())

        async def main() -> list[list[int]]:
            tasks = await begun(served, [[1], [2]])
            kill(served, number=STOP_SIGNAL)
            got = await asyncio.gather(*tasks)
            while served.engine.is_serving:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)
            return [*got, await collect(served.engine, [3], LONG, "after")]

        assert served.run(main()) == [tokens([number], LONG) for number in (1, 2, 3)]

    def test_what_it_counts(self, serve):
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(worker=worker(), observers={"rec": logger})

        async def main() -> None:
            tasks = await begun(served, [[1, 2, 3], [4, 5]])
            kill(served)
            await asyncio.gather(*tasks)
            while len(finished(logger)) < 2:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)

        served.run(main())
        found = recoveries(logger)
        assert sum(each.deaths for each in found) == 1
        assert sum(each.restarts for each in found) == 1
        assert sum(each.requests_continued for each in found) == 2
        assert (
            sum(each.tokens_recomputed for each in found) >= 5 + 2
        )  # prompts, and a token of each
        prompts = [each.iteration.num_prompt_tokens for each in logger.records if each.iteration]
        assert sum(prompts) == 5  # what is computed again counts once
        assert [each.num_generation_tokens for each in finished(logger)] == [60, 60]

    def test_shutdown_while_it_is_started_again(self, serve):
        served = serve(worker=worker())

        async def main() -> None:
            tasks = await begun(served, [[1]])
            kill(served)
            while served.engine.engine_core.engines:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            served.engine.shutdown()
            with pytest.raises(EngineDeadError, match="shut down"):
                await tasks[0]

        served.run(main())

    def test_a_loop_that_ends_meanwhile_does_not_wait_for_the_start(self, serve, caplog):
        """SIGTERM while an engine loads: its start is cancelled."""
        served = serve(worker=worker())
        fleet = served.engine.engines.fleet
        seen = []

        def slow(engines: Any) -> dict[str, int]:
            seen.append(engines)
            fleet._check_open()
            return {}

        async def main() -> None:
            tasks = await begun(served, [[1]])
            fleet._ended = slow
            fleet.launcher.start = lambda specs: None  # it never gets ready
            kill(served)
            while not seen:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)
            tasks[0].cancel()

        served.run(main())
        served.runner.close()
        assert served.engine.engines.fleet.is_cancelled

    def test_a_drain_waits_for_it(self, serve):
        served = serve(worker=worker())

        async def main() -> bool:
            tasks = await begun(served, [[1]])
            kill(served)
            drained = await served.engine.drain(20)
            assert await tasks[0] == tokens([1], LONG)
            return drained

        assert served.run(main())


class TestSeveralEngines:
    def test_streams_move_to_the_sibling_at_once(self, serve, monkeypatch):
        served = serve(worker=worker(), data_parallel_size=2)
        prompts = [[number, 5] for number in range(8)]
        again = asyncio.Event()
        owner = served.engine.recovery.owner
        restart = owner.restart

        async def later(indexes: Any) -> None:
            await again.wait()
            await restart(indexes)

        monkeypatch.setattr(owner, "restart", later)

        async def main() -> list[list[int]]:
            tasks = await begun(served, prompts)
            kill(served, 1)
            got = await asyncio.gather(*tasks)  # engine 1 is not there yet
            assert sorted(served.engine.engine_core.engines) == [0]
            again.set()
            pinned = await collect(served.engine, [3], params(), "pinned", data_parallel_rank=1)
            return [*got, pinned]

        *got, pinned = served.run(main())
        assert got == [tokens(prompt, LONG) for prompt in prompts]
        assert pinned == tokens([3], params())
        assert served.engine.info.engine_indexes == (0, 1)

    def test_a_pinned_stream_waits_for_its_engine(self, serve):
        served = serve(worker=worker(), data_parallel_size=2)

        async def main() -> list[list[int]]:
            tasks = await begun(served, [[1], [2]], data_parallel_rank=1)
            kill(served, 1)
            return await asyncio.gather(*tasks)

        assert served.run(main()) == [tokens([1], LONG), tokens([2], LONG)]

    def test_both_at_once(self, serve):
        served = serve(worker=worker(), data_parallel_size=2)
        prompts = [[number, 5] for number in range(8)]

        async def main() -> list[list[int]]:
            tasks = await begun(served, prompts)
            kill(served, 0)
            kill(served, 1)
            return await asyncio.gather(*tasks)

        assert served.run(main()) == [tokens(prompt, LONG) for prompt in prompts]
        assert sorted(served.engine.engine_pids) == ["engine 0", "engine 1"]

    def test_it_is_scaled_meanwhile(self, serve):
        served = serve(worker=worker(), data_parallel_size=2)

        async def main() -> list[list[int]]:
            tasks = await begun(served, [[number] for number in range(1, 7)])
            kill(served, 1)
            await served.engine.scale(3)
            found = await asyncio.gather(*tasks)
            while 1 not in served.engine.engine_core.engines:  # noqa: ASYNC110 - the streams may have been over
                await asyncio.sleep(0.001)
            return found

        assert served.run(main()) == [tokens([number], LONG) for number in range(1, 7)]
        assert sorted(served.engine.engine_core.engines) == [0, 1, 2]


class TestPoison:
    def test_a_plugin_that_raises_for_one_request(self, serve):
        self.run_with_poison(serve(worker=worker(fail_step_token=7)))

    def test_a_worker_that_ends_the_process(self, serve):
        self.run_with_poison(serve(worker=worker(exit_token=7)))

    def test_with_a_sibling(self, serve):
        self.run_with_poison(serve(worker=worker(exit_token=7), data_parallel_size=2))

    @staticmethod
    def run_with_poison(served: Served) -> None:
        """It ends with an explicit error; no other is lost, and no crash follows."""
        prompts = [[number, 5] for number in range(10, 16)]
        wanted = [tokens(prompt, HARMLESS) for prompt in prompts]

        async def main() -> list[list[int]]:
            tasks = await begun(served, prompts, HARMLESS)
            with pytest.raises(EngineGenerateError, match="engines died while it ran, 2 in a row"):
                await collect(served.engine, [7], params(), "poison")
            return await asyncio.gather(*tasks)

        assert served.run(main()) == wanted
        assert served.run(collect(served.engine, [3], params(), "after")) == tokens([3], params())


class TestInnocent:
    """A death counts for a request only if the engine had begun a step before it."""

    def test_an_engine_that_dies_before_its_first_step(self, serve, monkeypatch, caplog):
        served = serve(worker=worker())
        events = served.engine.events
        admit = events.on_admitted
        pids: list[int] = []

        def die_with_the_requests(indexes: Any) -> None:
            """They have been sent to an engine that cannot look at them any more."""
            pids.append(served.pid)
            is_second = len(pids) == 1
            if is_second:
                halt(served)
            admit(indexes)
            if is_second:
                kill(served)

        monkeypatch.setattr(events, "on_admitted", die_with_the_requests)

        async def main() -> list[list[int]]:
            tasks = await begun(served, [[1], [2]])
            kill(served)
            return await asyncio.gather(*tasks)

        assert served.run(main()) == [tokens([1], LONG), tokens([2], LONG)]
        assert len(pids) == 2
        assert "SIGKILL, before its first step" in caplog.text
        assert "retrying it in isolation" not in caplog.text

    def test_an_engine_that_dies_before_it_tries_a_suspect(self, serve, monkeypatch, caplog):
        served = serve(worker=worker(delay_s=0.1), max_round_tokens=1)
        recovery = served.engine.recovery.streams
        send = recovery.client.send_requests
        short = params(max_tokens=12)
        trials: list[int] = []

        def die_with_the_suspect(index: int | None, requests: Any) -> None:
            if recovery.on_trial:
                trials.append(served.pid)
            is_first = index is not None and trials == [served.pid]
            if is_first:
                halt(served)
            send(index, requests)
            if is_first:
                kill(served)

        monkeypatch.setattr(recovery.client, "send_requests", die_with_the_suspect)

        async def main() -> list[int]:
            stream = served.engine.generate([1], short, "r")
            got: list[int] = []
            for _ in range(2):  # with few tokens in between
                got += (await anext(stream)).outputs[0].token_ids
                kill(served)
            async for output in stream:
                got += output.outputs[0].token_ids
            return got

        assert served.run(main()) == tokens([1], short)
        assert len(trials) == 2
        assert caplog.text.count("retrying it in isolation") == 2


class TestGivingUp:
    def test_after_three_restarts(self, serve, caplog):
        served = serve(worker=worker())

        async def main() -> None:
            tasks = await begun(served, [[1]])
            for _ in range(4):
                while not served.engine.is_serving:  # noqa: ASYNC110 - no event reports it
                    await asyncio.sleep(0)
                kill(served)
                while served.engine.is_serving:  # noqa: ASYNC110 - no event reports it
                    await asyncio.sleep(0)
            with pytest.raises(EngineDeadError, match=r"SIGKILL.*; it restarted 3 times"):
                await tasks[0]

        served.run(main())
        assert served.engine.errored
        assert served.engine.is_stopped
        assert caplog.text.count("restarting engine 0") == 3
        with pytest.raises(EngineDeadError, match="it restarted 3 times"):
            served.run(collect(served.engine, [1], params(), "late"))

    def test_an_engine_that_cannot_be_started_again(self, serve, tmp_path, monkeypatch):
        monkeypatch.setattr(restarts, "RETRY_S", 0.0)
        served = serve(worker=worker())
        starts = []

        async def broken(indexes: Any) -> None:
            starts.append(indexes)
            raise LaunchError("no weights left")

        monkeypatch.setattr(served.engine.recovery.owner, "restart", broken)

        async def main() -> None:
            tasks = await begun(served, [[1]])
            kill(served)
            with pytest.raises(EngineDeadError, match="could not be started: no weights left"):
                await tasks[0]

        served.run(main())
        assert starts == [[0]] * 3
        assert served.engine.errored

    def test_with_a_sibling_it_goes_on_alone(self, serve):
        never = {"name": "resume", "options": {"max_restarts": 0}}
        served = serve(worker=worker(), data_parallel_size=2, engine_recovery=never)

        async def main() -> list[list[int]]:
            tasks = await begun(served, [[number] for number in range(1, 5)])
            pinned = asyncio.ensure_future(
                collect(served.engine, [9], LONG, "pinned", data_parallel_rank=1)
            )
            await asyncio.sleep(0)
            kill(served, 1)
            with pytest.raises(RequestError, match="there is no such engine"):
                await pinned
            return await asyncio.gather(*tasks)

        assert served.run(main()) == [tokens([number], LONG) for number in range(1, 5)]
        assert not served.engine.errored

    @pytest.mark.parametrize("change", ["weights", "sleep", "hold"])
    def test_engines_that_would_not_be_as_they_were(self, serve, change):
        served = serve(worker=worker())
        served.engine.calls.divergence.add(f"engines: {change}")

        async def main() -> None:
            tasks = await begun(served, [[1]])
            kill(served)
            with pytest.raises(EngineDeadError, match=f"not restarted: engines: {change}"):
                await tasks[0]

        served.run(main())
        assert served.engine.errored

    def test_kv_of_another_engine_is_not_asked_for_twice(self, serve):
        served = serve(worker=worker())

        async def main() -> list[int]:
            tasks = await begun(served, [[1]])
            (other,) = await begun_with_transfer(served)
            kill(served)
            with pytest.raises(EngineDeadError, match="kv_transfer_params"):
                await other
            return await tasks[0]

        assert served.run(main()) == tokens([1], LONG)


async def begun_with_transfer(served: Served) -> list[asyncio.Task]:
    started = asyncio.Event()

    async def read() -> None:
        stream = served.engine.generate([2], LONG, "transfer", kv_transfer_params={"from": 1})
        async for _ in stream:
            started.set()

    task = asyncio.ensure_future(read())
    await started.wait()
    return [task]


def finished(logger: RecordingStatLogger) -> list[FinishedRequestStats]:
    return [one for each in logger.records if each.iteration for one in each.iteration.finished]


def recoveries(logger: RecordingStatLogger) -> list[RecoveryStats]:
    return [each.recovery for each in logger.records if each.recovery is not None]
