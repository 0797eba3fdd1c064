"""A process that serves a fake engine: `serve_fake.py PORT TIMEOUT [EVENT …]`.

Events: `slow-start` keeps the engine from being ready, `bad-start` fails to start, `die` kills the engine on a
completion with the prompt "die".
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from openai_server_fakes import FakeEngine

from tenonry.config import EngineConfig
from tenonry.errors import LaunchError, TenonryError
from tenonry_openai_server.serving.lifecycle import serve
from tenonry_openai_server.serving.listener import listen
from tenonry_openai_server.settings import ServerConfig


class ProcessEngine(FakeEngine):
    """Endless answers, a step each few milliseconds; a prompt is an instruction."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.endless, self.step_s = True, 0.005

    async def generate(self, prompt, sampling_params, request_id, **fields):
        if prompt == "die":
            asyncio.get_running_loop().call_later(0.1, setattr, self, "dead", True)
        async for output in super().generate(prompt, sampling_params, request_id, **fields):
            yield output

    async def _outputs(self, request_id, ids, text, params, stop):
        self.endless = params.max_tokens > 100
        async for output in super()._outputs(request_id, ids, text, params, stop):
            yield output

    def shutdown(self) -> None:
        super().shutdown()
        sys.stderr.write("engine shut down\n")


def make_engine(config: EngineConfig, listen: Callable[[], None]) -> FakeEngine:
    listen()
    if "slow-start" in sys.argv:
        sys.stderr.write("starting\n")
        sys.stderr.flush()
        time.sleep(60)
    if "bad-start" in sys.argv:
        raise LaunchError("the engine does not fit: 1 GiB is needed, 0 are there")
    return ProcessEngine(config)


def main() -> int:
    sock, settings = listen(ServerConfig(port=int(sys.argv[1])))
    try:
        return serve(
            EngineConfig(model="fake", shutdown_timeout=float(sys.argv[2])),
            settings,
            sock,
            make_engine,
        )
    except TenonryError as error:
        sys.stderr.write(f"tenonry: error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
