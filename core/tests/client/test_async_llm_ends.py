"""Ends of an AsyncLLM: shutdown and collection; nothing is left (AF-4, AF-21)."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from tenonry.client.async_llm import AsyncLLM
from tenonry.errors import EngineDeadError
from tenonry_testkit.kernel.roles import is_gone
from tenonry_testkit.kernel.served import served_config
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params

SLOW = {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {"delay_s": 0.02}}


LONG = params(max_tokens=480)


@pytest.mark.usefixtures("forked_children")
class TestShutdown:
    """AF-21."""

    def test_open_streams_end_and_the_engine_goes_without_being_killed(self, serve, caplog):
        served = serve(worker=SLOW)
        pid = served.pid

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
        assert "the engine failed" not in caplog.text

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
        pid = served.pid
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
            await asyncio.sleep(0)
            while await answers(served.engine):
                pass
            served.engine.shutdown(timeout=0.2)
            with pytest.raises(EngineDeadError):
                await task

        served.run(main())
        assert "did not stop within 0.2 s; killing it" in caplog.text


async def answers(engine: AsyncLLM) -> bool:
    try:
        async with asyncio.timeout(0.5):
            await engine.collective_rpc("echo", ["x"])
    except TimeoutError:
        return False
    return True


class TestCollection:
    """AF-4: the output handler does not keep a front end alive."""

    def test_a_front_end_without_references_ends_its_engine(self, forked_children, fake_model_site):
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
    @pytest.mark.nightly_after(1)
    def test_a_script_that_just_ends_leaves_nothing(self, fake_model_site, body):
        """No `if __name__` guard, no shutdown, no process left, no noise."""
        with self.script(fake_model_site.folder, body) as script:
            out, err = script.communicate(timeout=25)
        assert script.returncode == 0, err
        eventually(lambda: is_gone(int(out)))
        assert "Traceback" not in err
        assert "Exception ignored" not in err

    def test_a_front_end_that_is_killed_ends_its_engine(self, fake_model_site):
        """Fault 12: within five seconds."""
        with self.script(fake_model_site.folder, "pass", "import time; time.sleep(60)") as script:
            assert script.stdout is not None
            pid = int(script.stdout.readline())
            script.kill()
            script.communicate()
        eventually(lambda: is_gone(pid), seconds=5)
