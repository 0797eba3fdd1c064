"""How an AsyncLLM starts and ends: dead engines, shutdown, collection, bad starts; nothing is left (AF-4, 20, 21)."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from tenonry.client import engines
from tenonry.client.admission import Admission
from tenonry.client.async_llm import AsyncLLM
from tenonry.client.core_client import CoreClient
from tenonry.errors import (
    ConfigError,
    EngineDeadError,
    LaunchError,
    ModelError,
    PluginFault,
    PluginNotFound,
    RequestError,
    TenonryError,
)
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.launch.supervise import STOP_SIGNAL
from tenonry.messages import RequestType
from tenonry.sampling_params import OutputKind
from tenonry.transport.folder import RunDirectory
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.kernel.plugins import raising_hooks
from tenonry_testkit.kernel.roles import is_gone
from tenonry_testkit.kernel.served import QUICK, Served, served_config
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens

Serve = Callable[..., Served]
SLOW = {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {"delay_s": 0.02}}
LONG = params(max_tokens=480)
WITHIN_S = 2.0  # of the engine's death


def pid_of(served: Served) -> int:
    return served.engine.engine_pids["engine 0"]


class TestDeath:
    """Every stream ends with EngineDeadError within two seconds; nothing is accepted any more (AF-20, fault 1)."""

    def test_sigkill_with_sixteen_streams_in_the_middle(self, serve, caplog):
        served = serve(worker=SLOW)

        async def main() -> None:
            started = [asyncio.Event() for _ in range(16)]

            async def read(index: int) -> None:
                async for _ in served.engine.generate([index], LONG, f"{index}"):
                    started[index].set()

            tasks = [asyncio.ensure_future(read(i)) for i in range(16)]
            final = asyncio.ensure_future(
                collect(
                    served.engine, [1], params(output_kind=OutputKind.FINAL, max_tokens=400), "f"
                )
            )
            call = asyncio.ensure_future(served.engine.collective_rpc("echo", ["x"]))
            await asyncio.gather(call, *(event.wait() for event in started))
            os.kill(pid_of(served), signal.SIGKILL)
            results = await asyncio.wait_for(
                asyncio.gather(*tasks, final, return_exceptions=True), WITHIN_S
            )
            assert [type(result) for result in results] == [EngineDeadError] * 17
            assert "engine 0 (pid" in str(results[0])
            assert "signal SIGKILL" in str(results[0])
            assert served.engine.num_unfinished_requests == 0

        served.run(main())
        engine = served.engine
        assert engine.errored
        assert engine.engine_pids == {}
        for refused in (
            engine.check_health(), collect(engine, [1], params(), "late"), engine.reset_prefix_cache(), anext(
                engine.generate([1], params(), "later")
            ),
        ):  # fmt: skip
            with pytest.raises(EngineDeadError, match="signal SIGKILL"):
                served.run(refused)
        assert caplog.text.count("the engine died: engine 0") == 1

    def test_calls_and_held_requests_hear_of_it(self, serve):
        served = serve(worker=SLOW)

        async def main() -> None:
            await served.engine.pause_generation()
            held = asyncio.ensure_future(collect(served.engine, [1], params(), "held"))
            await asyncio.sleep(0.05)
            os.kill(pid_of(served), signal.SIGSTOP)  # it cannot answer any more
            call = asyncio.ensure_future(served.engine.collective_rpc("echo", ["x"]))
            await asyncio.sleep(0.05)
            os.kill(pid_of(served), signal.SIGKILL)
            results = await asyncio.wait_for(
                asyncio.gather(held, call, return_exceptions=True), WITHIN_S
            )
            assert [type(result) for result in results] == [EngineDeadError] * 2

        served.run(main())

    def test_whoever_waits_for_requests_to_end_hears_of_it(self, serve):
        served = serve(worker=SLOW)

        async def main() -> None:
            stream = served.engine.generate([1], LONG, "r")
            await anext(stream)
            waits = asyncio.ensure_future(served.engine.wait_for_requests_to_drain())
            await asyncio.sleep(0)
            os.kill(pid_of(served), signal.SIGKILL)
            with pytest.raises(EngineDeadError, match="signal SIGKILL"):
                await waits
            await stream.aclose()

        served.run(main())

    def test_an_engine_that_hangs_is_given_up(self, serve, caplog):
        """Fault 8, where the worker lives in the engine's process."""
        served = serve(worker=SLOW, step_timeout=1)

        async def main() -> None:
            stream = asyncio.ensure_future(collect(served.engine, [1], LONG, "r"))
            await asyncio.sleep(0.2)
            os.kill(pid_of(served), signal.SIGSTOP)
            with pytest.raises(EngineDeadError, match="signal SIGKILL"):
                await asyncio.wait_for(stream, 20)

        served.run(main())
        assert served.engine.errored
        assert re.search(
            r"engine 0 \(pid \d+\) has sent no heartbeat for 2 s \(--step-timeout\)",
            caplog.text,
        )

    def test_an_idle_engine_and_one_with_a_long_call_live_on(self, serve):
        served = serve(step_timeout=1)

        async def main() -> list[int]:
            await asyncio.sleep(3)
            await served.engine.collective_rpc("nap", [4.0])
            return await collect(served.engine, [1], params(), "r")

        assert served.run(main()) == tokens([1], params())

    def test_before_anybody_asked_for_anything(self, serve):
        served = serve()
        os.kill(pid_of(served), signal.SIGKILL)
        eventually(lambda: served.engine.errored)
        with pytest.raises(EngineDeadError, match="signal SIGKILL"):
            served.run(collect(served.engine, [1], params(), "r"))

    def test_a_fault_in_a_step_names_the_plugin(self, serve):
        served = serve(
            worker={
                "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
                "options": {"fail_step_token": 7},
            }
        )
        with pytest.raises(
            EngineDeadError,
            match=r"plugin tenonry_testkit.kernel.faulty:FaultyWorker .* told to fail on token 7",
        ):
            served.run(collect(served.engine, [7], params(), "r"))

    def test_a_worker_that_ends_the_process(self, serve):
        served = serve(
            worker={
                "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
                "options": {"exit_token": 7},
            }
        )
        with pytest.raises(EngineDeadError, match="ended with exit code 77"):
            served.run(collect(served.engine, [7], params(), "r"))

    def test_an_engine_that_was_told_to_stop_finishes_what_runs_first(self, serve):
        """The last words of an engine that drained come before the news of its end."""
        served = serve(worker=SLOW)

        async def main() -> None:
            short = served.engine.generate([1], params(max_tokens=20), "r")
            long = served.engine.generate([2], params(max_tokens=30), "s")
            begun = [
                await anext(short),
                await anext(long),
            ]  # a request that is on its way yet would be refused
            os.kill(pid_of(served), STOP_SIGNAL)
            outputs = [begun[0], *[output async for output in short]]
            got = [token for output in outputs for token in output.outputs[0].token_ids]
            assert got == tokens([1], params(max_tokens=20))
            assert [output async for output in long][-1].outputs[0].finish_reason == "length"

        served.run(main())
        eventually(lambda: served.engine.errored)
        assert "exit code 0" in str(served.engine.dead_error)

    def test_an_error_of_the_output_handler_ends_every_request(self, serve, monkeypatch):
        """AF-5: nobody is left waiting."""
        served = serve(worker=SLOW)

        def broken(outputs: Any) -> None:
            raise KeyError("on purpose")

        async def main() -> None:
            tasks = [
                asyncio.ensure_future(collect(served.engine, [i], LONG, f"{i}")) for i in range(3)
            ]
            await asyncio.sleep(0.1)
            monkeypatch.setattr(served.engine._outputs, "absorb", broken)
            results = await asyncio.wait_for(
                asyncio.gather(*tasks, return_exceptions=True), WITHIN_S
            )
            assert [str(result) for result in results] == [
                "the output handler failed: 'on purpose'"
            ] * 3

        served.run(main())
        assert not served.engine.is_running

    def test_an_error_in_a_later_chunk_of_the_handler_too(self, serve, monkeypatch):
        served = serve(max_num_seqs=256, worker=SLOW)
        flush = served.engine._outputs.flush
        calls = []

        def broken(touched: Any = None) -> list[int]:
            calls.append(len(touched))
            if len(calls) > 4 and len(touched) < 128:
                raise KeyError("on purpose")
            return flush(touched)

        async def main() -> None:
            tasks = [
                asyncio.ensure_future(collect(served.engine, [i], LONG, f"{i}")) for i in range(200)
            ]
            await asyncio.sleep(0.2)
            monkeypatch.setattr(served.engine._outputs, "flush", broken)
            results = await asyncio.wait_for(
                asyncio.gather(*tasks, return_exceptions=True), WITHIN_S + 2
            )
            assert {type(result) for result in results} == {EngineDeadError}

        served.run(main())


class TestShutdown:
    """AF-21."""

    def test_open_streams_end_and_the_engine_goes_without_being_killed(self, serve, caplog):
        served = serve(worker=SLOW)
        pid = pid_of(served)

        async def main() -> None:
            stream = served.engine.generate([1], LONG, "r")
            await anext(stream)
            served.engine.shutdown()
            with pytest.raises(EngineDeadError, match="the engine was shut down"):
                async for _ in stream:
                    pass

        served.run(main())
        assert is_gone(pid)
        assert "did not stop within" not in caplog.text
        assert "the engine died" not in caplog.text

    def test_it_may_be_called_again_and_everything_says_so_afterwards(self, serve):
        served = serve()
        served.run(collect(served.engine, [1], params(), "r"))
        closed = []
        served.engine.io_processor.shutdown = lambda: closed.append(1)  # type: ignore[union-attr,method-assign]
        for _ in range(3):
            served.engine.shutdown()
        assert closed == [1]
        assert served.engine.errored
        for refused in (
            served.engine.check_health(),
            collect(served.engine, [1], params(), "s"),
            served.engine.reset_prefix_cache(),
        ):
            with pytest.raises(EngineDeadError, match="it was shut down"):
                served.run(refused)
        served.run(served.engine.abort("r"))

    def test_from_another_thread_while_the_loop_runs(self, serve):
        served = serve(worker=SLOW)

        async def main() -> None:
            stream = served.engine.generate([1], LONG, "r")
            await anext(stream)
            thread = threading.Thread(target=served.engine.shutdown)
            thread.start()
            with pytest.raises(EngineDeadError, match="shut down"):
                async for _ in stream:
                    pass
            thread.join()

        served.run(main())

    def test_after_its_loop_was_closed(self, serve, caplog):
        served = serve(worker=SLOW)

        async def main() -> None:
            stream = await served.engine.add_request([1], LONG, "r")
            await stream.wait()

        served.run(main())
        served.runner.close()
        pid = pid_of(served)
        served.engine.shutdown()
        assert is_gone(pid)
        assert "did not stop within" not in caplog.text

    def test_without_ever_having_served(self, serve):
        served = serve()
        served.engine.shutdown()
        assert served.engine.errored

    def test_an_engine_that_hangs_is_killed(self, serve, caplog):
        served = serve(
            worker={
                "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
                "options": {"hang_token": 7},
            }
        )

        async def main() -> None:
            task = asyncio.ensure_future(collect(served.engine, [7], params(), "r"))
            await asyncio.sleep(0.3)
            served.engine.shutdown(timeout=0.2)
            with pytest.raises(EngineDeadError):
                await task

        served.run(main())
        assert "did not stop within 0.2 s; killing it" in caplog.text


class TestCollection:
    """AF-4: the output handler does not keep a front end alive."""

    def test_a_front_end_that_nobody_holds_takes_its_engine_along(self, fake_model_site):
        async def main() -> int:
            engine = AsyncLLM(served_config())
            await collect(engine, [1], params(), "r")
            reference, pid = weakref.ref(engine), engine.engine_pids["engine 0"]
            del engine
            gc.collect()
            assert reference() is None
            return pid

        pid = asyncio.run(main())
        eventually(lambda: is_gone(pid))

    SCRIPT = """
import asyncio, sys
sys.path[:0] = sys.argv[1].split(":")
from tenonry_testkit.kernel.served import served_config
from tenonry_testkit.served import collect, params
from tenonry import AsyncLLM

engine = AsyncLLM(served_config())
async def main():
    {body}
asyncio.run(main())
print(*engine.engine_pids.values(), flush=True)
{end}
"""

    def script(self, folder: Path, body: str, end: str = "") -> subprocess.Popen[str]:
        source = self.SCRIPT.format(body=body, end=end)
        path = ":".join(sys.path)
        return subprocess.Popen(
            [sys.executable, "-c", source, path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @pytest.mark.parametrize(
        "body",
        [
            "await collect(engine, [1], params(), 'r')",
            "await anext(engine.generate([1], params(max_tokens=400), 'r'))",
            "pass",
        ],
    )
    def test_a_script_that_just_ends_leaves_nothing(self, fake_model_site, body):
        """No `if __name__` guard, no shutdown, no process left, no noise."""
        with self.script(fake_model_site.folder, body) as script:
            out, err = script.communicate(timeout=25)
        assert script.returncode == 0, err
        eventually(lambda: is_gone(int(out)))
        assert "Traceback" not in err
        assert "Exception ignored" not in err

    def test_a_front_end_that_is_killed_takes_its_engine_along(self, fake_model_site):
        """Fault 12: within five seconds."""
        with self.script(fake_model_site.folder, "pass", "import time; time.sleep(60)") as script:
            assert script.stdout is not None
            pid = int(script.stdout.readline())
            script.kill()
            script.communicate()
        eventually(lambda: is_gone(pid), seconds=5)


class TestStart:
    def start(self, **values: Any) -> AsyncLLM:
        return AsyncLLM(served_config(**values))

    def test_it_may_be_built_in_a_thread_while_a_loop_runs(self, fake_model_site):
        async def main() -> None:
            engine = await asyncio.to_thread(self.start)
            assert await collect(engine, [1], params(), "r") == tokens([1], params())
            engine.shutdown()
            await asyncio.get_running_loop().shutdown_default_executor()

        asyncio.run(main())

    def test_from_config_is_the_constructor(self, fake_model_site):
        engine = AsyncLLM.from_config(served_config(), context="test")
        assert engine.info.usage is not None
        assert engine.info.usage.context == "test"
        engine.shutdown()

    @pytest.mark.parametrize(
        ("values", "error", "text"),
        [
            ({"worker": {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {"fail_load": "no weights"}}}, LaunchError,  # noqa: E501
             "engine 0 could not start: no weights"),
            ({"scheduler": {"name": "tenonry_testkit.kernel.faulty:FaultyScheduler", "options": {"fail": "constructor"}}}, LaunchError,  # noqa: E501
             "plugin tenonry_testkit.kernel.faulty:FaultyScheduler .* constructor failed on purpose"),
            ({"scheduler": "nobody"}, PluginNotFound, "no scheduler is called 'nobody'"),
            ({"launcher": "rays"}, PluginNotFound, "no launcher is called 'rays'"),
            ({"model": "unknown"}, ModelError, "model 'unknown' was found by no plugin"),
            ({"max_model_len": 5000}, ConfigError, "max_model_len=5000 is above the 2048 tokens"),
            ({"data_parallel_size": 2, "data_parallel_size_local": 1}, ConfigError, "tenonry keys FILE"),
            ({"num_gpu_blocks_override": 1, "block_size": 4}, LaunchError, "max_model_len=512 does not fit"),
            ({"stat_loggers": ["tenonry_testkit.kernel.faulty:Nothing"]}, TenonryError, "has no 'Nothing'"),
        ],
    )  # fmt: skip
    def test_a_start_that_fails_says_why_and_leaves_nothing(
        self, fake_model_site, values, error, text
    ):
        with pytest.raises(error, match=text):
            self.start(**values)
        gc.collect()
        assert psutil.Process().children() == []

    @pytest.mark.parametrize(
        ("values", "is_plain"),
        [
            ({"num_gpu_blocks_override": 1, "block_size": 4}, True),
            (
                {
                    "scheduler": {
                        "name": "tenonry_testkit.kernel.faulty:FaultyScheduler",
                        "options": {"fail": "constructor"},
                    }
                },
                False,
            ),
        ],
    )
    def test_only_a_failure_that_says_too_little_is_traced(
        self, fake_model_site, capfd, values, is_plain
    ):
        with pytest.raises(LaunchError):
            self.start(**values)
        log = capfd.readouterr().err
        assert "engine 0 could not be built" in log
        assert ("Traceback" not in log) is is_plain

    @pytest.mark.parametrize(
        ("values", "text"),
        [
            (
                {
                    "worker": {
                        "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
                        "options": {"fail_load": "no weights"},
                    }
                },
                "no weights",
            ),
            ({"data_parallel_size": 2, "data_parallel_size_local": 1}, "tenonry keys FILE"),
        ],
    )
    def test_a_start_that_fails_ends_what_loggers_hold(self, fake_model_site, values, text):
        """A port, for instance: else no second start could have it."""
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        with pytest.raises(TenonryError, match=text):
            AsyncLLM(served_config(**values), stat_loggers={"rec": logger})
        assert logger.calls == ["shutdown"]

    def test_an_engine_that_takes_too_long_is_stopped(self, fake_model_site):
        """Q13."""
        with pytest.raises(
            LaunchError, match=r"not ready after 0.05 s: engine 0 \(.*\); raise --start-timeout"
        ):
            self.start(start_timeout=0.05)
        assert psutil.Process().children() == []

    def test_an_engine_that_never_connects_is_stopped(self, fake_model_site, monkeypatch):
        """Q13: it is ready, and yet nothing can be sent to it."""
        monkeypatch.setattr(engines, "CONNECT_TIMEOUT_S", 0.05)
        monkeypatch.setattr(CoreClient, "unheard", lambda _: {0})
        with pytest.raises(
            LaunchError, match=r"engines \[0\] are ready but did not connect their sockets"
        ):
            self.start()
        assert psutil.Process().children() == []

    def test_a_hook_that_refuses_the_running_engine_stops_it(self, tmp_path, fake_model_site):
        fake_model_site.distribution(
            "late", entry_points={"tenonry.plugins": {"late": "late_hooks"}},
            modules={"late_hooks": raising_hooks("tenonry_engine_ready", "info")},
        )  # fmt: skip
        with pytest.raises(PluginFault, match="plugin late"):
            self.start(plugins={"allow": ["fake-model", "late"]})
        assert psutil.Process().children() == []

    def test_plugins_in_use_are_told_in_one_line(self, fake_model_site, caplog):
        with caplog.at_level(logging.INFO):
            engine = self.start()
        engine.shutdown()
        (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("plugins: ")]
        assert "scheduler tenonry_testkit.fakes:ReferenceScheduler" in line
        assert "launcher process 0.1.0" in line
        assert "engine 0 uses fake tokens" in caplog.text

    def test_the_engines_process_has_a_name(self, serve):
        served = serve()
        assert " ".join(psutil.Process(pid_of(served)).cmdline()).startswith("tenonry: engine 0")


class Tracer(RecordingStatLogger):
    traces = True


class TestStatLoggers:
    """AF-2, AF-22, SL-1, US-1."""

    def test_they_hear_of_the_engine_its_steps_and_its_requests(self, serve):
        heard = Tracer(StatLoggerContext(served_config()))
        served = serve(observers={"mine": heard}, worker=QUICK)
        assert served.engine.stat_loggers == {"mine": heard}

        async def main() -> None:
            assert await served.engine.is_tracing_enabled() is True
            fields = {"tags": {"tenant": "acme"}, "trace_headers": {"traceparent": "00-1-2-01"}}
            await collect(served.engine, [1, 2], params(max_tokens=20), "r", **fields)
            while not any(
                record.iteration and record.iteration.finished for record in heard.records
            ):
                await served.engine.reset_prefix_cache()  # the observer hears a little later

        served.run(main())
        served.engine.shutdown()
        (info,) = heard.infos
        assert info.usage is not None
        assert info == served.engine.info
        assert sum(record.iteration.num_generation_tokens for record in heard.records) == 20
        assert any(record.scheduler.num_running == 1 for record in heard.records)
        (finished,) = [each for record in heard.records for each in record.iteration.finished]
        assert (finished.request_id, finished.num_prompt_tokens, finished.tags) == (
            "r",
            2,
            {"tenant": "acme"},
        )
        assert finished.trace_headers == {"traceparent": "00-1-2-01"}
        assert abs(finished.start_time - time.time()) < 3600  # the time of day
        assert heard.calls[-2:] == ["log", "shutdown"]

    def test_whoever_brings_one_hears_something_even_without_log_stats(self, serve):
        heard = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(observers={"mine": heard}, log_stats=False)
        served.run(collect(served.engine, [1], params(), "r"))
        served.run(served.engine.reset_prefix_cache())
        served.engine.shutdown()
        assert heard.records

    def test_rejections_and_sleep_are_told(self, serve, monkeypatch):
        heard = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(observers={"mine": heard})

        async def main() -> None:
            with pytest.raises(RequestError):
                await collect(served.engine, [], params(), "r")
            monkeypatch.setattr(Admission, "capacity", 1)
            with served.engine._admission.holding(1), pytest.raises(TenonryError):
                await collect(served.engine, [1], params(), "r")
            await served.engine.drain(0)
            with pytest.raises(TenonryError):
                await collect(served.engine, [1], params(), "r")
            await served.engine.sleep(2)
            await served.engine.wake_up()

        served.run(main())
        served.engine.shutdown()
        assert heard.rejections == ["invalid", "queue_full", "draining"]
        assert heard.sleeps == [(True, 2), (False, 0)]

    def test_those_of_the_configuration_are_built_by_name(self, serve):
        served = serve(stat_loggers=["tenonry_testkit.fakes:RecordingStatLogger"])
        served.run(collect(served.engine, [1], params(), "r"))
        served.engine.shutdown()
        (heard,) = served.engine.stat_loggers.values()
        assert isinstance(heard, RecordingStatLogger)
        assert heard.records


def test_a_second_front_end_in_one_process_is_its_own_world(serve):
    one, two = serve(), serve()
    assert pid_of(one) != pid_of(two)
    one.engine.shutdown()
    assert two.run(collect(two.engine, [1], params(), "r")) == tokens([1], params())


def test_nothing_is_taken_for_news_that_is_not(serve):
    """What arrives on the output socket from anybody else is dropped and counted (fault 21)."""
    served = serve()
    client = served.engine._client
    frames = [[b""], [b"\xc1"], [b"x"] * 5, [client._encoder.encode([1, 2])[0]]]
    run = RunDirectory()
    _, address = client.bind(
        run.address(), run.address()
    )  # the engine's own is gone: nobody else is to find it

    async def hear_it() -> None:
        served.engine.listen()
        with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
            stranger.connect(address)
            for message in frames:
                stranger.send_multipart(message)
            while client.frames_dropped < 4:  # noqa: ASYNC110 - nothing says so
                await asyncio.sleep(0.01)

    served.run(asyncio.wait_for(hear_it(), 10))
    run.close()
    assert served.run(collect(served.engine, [1], params(), "r")) == tokens([1], params())
    assert client.frames_dropped == 4


def test_news_of_an_engine_of_the_past_is_dropped_and_counted(serve):
    served = serve()
    client = served.engine._client
    client._send(client.engines[0], RequestType.UTILITY, client._encoder.encode([1, "ping"])[0])
    client.engines[0].epoch += 1
    eventually(lambda: client.receive() is None and client.frames_dropped == 1)
