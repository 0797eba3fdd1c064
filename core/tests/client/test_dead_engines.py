"""Engines that die and are not started again: streams end with EngineDeadError within two seconds (AF-20, fault 1)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import Any

import pytest

from tenonry.errors import EngineDeadError
from tenonry.launch import supervise
from tenonry.launch.supervise import STOP_SIGNAL
from tenonry.sampling_params import OutputKind
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens

pytestmark = pytest.mark.usefixtures("forked_children")

SLOW = {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {"delay_s": 0.02}}


LONG = params(max_tokens=480)


WITHIN_S = 2.0  # of the engine's death


class TestDeath:
    """Every stream ends with EngineDeadError within two seconds; nothing is accepted any more (AF-20, fault 1)."""

    def test_sigkill_with_sixteen_streams_in_the_middle(self, serve, caplog):
        served = serve(worker=SLOW, engine_recovery="end")

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
            os.kill(served.pid, signal.SIGKILL)
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
        assert caplog.text.count("the engine failed: engine 0") == 1

    def test_calls_and_held_requests_fail(self, serve):
        served = serve(worker=SLOW, engine_recovery="end")

        async def main() -> None:
            await served.engine.pause_generation()
            held = asyncio.ensure_future(collect(served.engine, [1], params(), "held"))
            await asyncio.sleep(0.05)
            os.kill(served.pid, signal.SIGSTOP)  # it cannot answer any more
            call = asyncio.ensure_future(served.engine.collective_rpc("echo", ["x"]))
            await asyncio.sleep(0.05)
            os.kill(served.pid, signal.SIGKILL)
            results = await asyncio.wait_for(
                asyncio.gather(held, call, return_exceptions=True), WITHIN_S
            )
            assert [type(result) for result in results] == [EngineDeadError] * 2

        served.run(main())

    def test_a_wait_for_requests_to_drain_fails(self, serve):
        served = serve(worker=SLOW, engine_recovery="end")

        async def main() -> None:
            stream = served.engine.generate([1], LONG, "r")
            await anext(stream)
            waits = asyncio.ensure_future(served.engine.wait_for_requests_to_drain())
            await asyncio.sleep(0)
            os.kill(served.pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError, match="signal SIGKILL"):
                await waits
            await stream.aclose()

        served.run(main())

    def test_an_engine_that_hangs_is_given_up(self, serve, caplog):
        """Fault 8, where the worker lives in the engine's process."""
        served = serve(worker=SLOW, step_timeout=1, engine_recovery="end")

        async def main() -> None:
            stream = served.engine.generate([1], LONG, "r")
            await anext(stream)  # an engine without work may be silent
            os.kill(served.pid, signal.SIGSTOP)
            with pytest.raises(EngineDeadError, match="signal SIGKILL"):
                async for _ in stream:
                    pass

        served.run(main())
        assert served.engine.errored
        assert re.search(
            r"engine 0 \(pid \d+\) has sent no heartbeat for 2 s \(--step-timeout\)", caplog.text
        )

    @pytest.mark.parametrize("is_busy", [False, True])
    def test_an_engine_that_stays_stopped_is_killed(self, serve, caplog, monkeypatch, is_busy):
        """Long before --step-timeout, which is 300 s."""
        monkeypatch.setattr(supervise, "STOPPED_S", 2.0)
        served = serve(worker=SLOW, engine_recovery="end")

        async def main() -> None:
            stream = served.engine.generate([1], LONG, "r")
            if is_busy:
                await anext(stream)
            os.kill(served.pid, signal.SIGSTOP)
            with pytest.raises(EngineDeadError, match="signal SIGKILL"):
                async for _ in stream:
                    pass

        served.run(main())
        assert served.engine.errored
        assert re.search(r"engine 0 \(pid \d+\) was stopped by a signal for 2 s", caplog.text)

    def test_an_idle_engine_and_one_with_a_long_call_live_on(self, serve):
        served = serve(step_timeout=1)

        async def main() -> list[int]:
            await asyncio.sleep(3)
            await served.engine.collective_rpc("nap", [4.0])
            return await collect(served.engine, [1], params(), "r")

        assert served.run(main()) == tokens([1], params())

    def test_before_the_first_request(self, serve):
        served = serve(engine_recovery="end")
        os.kill(served.pid, signal.SIGKILL)
        eventually(lambda: served.engine.errored)
        with pytest.raises(EngineDeadError, match="signal SIGKILL"):
            served.run(collect(served.engine, [1], params(), "r"))

    def test_a_fault_in_a_step_names_the_plugin(self, serve):
        served = serve(
            engine_recovery="end",
            worker={
                "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
                "options": {"fail_step_token": 7},
            },
        )
        with pytest.raises(
            EngineDeadError,
            match=r"plugin tenonry_testkit.kernel.faulty:FaultyWorker .* told to fail on token 7",
        ):
            served.run(collect(served.engine, [7], params(), "r"))

    def test_a_worker_that_ends_the_process(self, serve):
        served = serve(
            engine_recovery="end",
            worker={
                "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
                "options": {"exit_token": 7},
            },
        )
        with pytest.raises(EngineDeadError, match="ended with exit code 77"):
            served.run(collect(served.engine, [7], params(), "r"))

    def test_an_engine_that_gets_a_stop_signal_finishes_what_runs_first(self, serve):
        """The last outputs of an engine that drained are read before its streams fail."""
        served = serve(worker=SLOW, engine_recovery="end")

        async def main() -> None:
            short = served.engine.generate([1], params(max_tokens=20), "r")
            long = served.engine.generate([2], params(max_tokens=30), "s")
            begun = [await anext(short), await anext(long)]  # a request in flight would be rejected
            os.kill(served.pid, STOP_SIGNAL)
            outputs = [begun[0], *[output async for output in short]]
            got = [token for output in outputs for token in output.outputs[0].token_ids]
            assert got == tokens([1], params(max_tokens=20))
            assert [output async for output in long][-1].outputs[0].finish_reason == "length"

        served.run(main())
        eventually(lambda: served.engine.errored)
        assert "exit code 0" in str(served.engine.dead_error)

    def test_an_error_of_the_output_handler_ends_every_request(self, serve, monkeypatch):
        """AF-5: no caller is left waiting."""
        served = serve(worker=SLOW, engine_recovery="end")

        def broken(outputs: Any) -> None:
            raise KeyError("on purpose")

        async def main() -> None:
            tasks = [
                asyncio.ensure_future(collect(served.engine, [i], LONG, f"{i}")) for i in range(3)
            ]
            await asyncio.sleep(0.1)
            monkeypatch.setattr(served.engine.output_processor, "absorb", broken)
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
        flush = served.engine.output_processor.flush
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
            monkeypatch.setattr(served.engine.output_processor, "flush", broken)
            results = await asyncio.wait_for(
                asyncio.gather(*tasks, return_exceptions=True), WITHIN_S + 2
            )
            assert {type(result) for result in results} == {EngineDeadError}

        served.run(main())
