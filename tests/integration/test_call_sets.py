"""A third-party distribution brings a call set, a request check and a route: in this process, with engines that join
or die, and over HTTP with several API servers (AF-15).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import Server

from tenonry import LLM, AsyncLLM, EngineConfig, SamplingParams
from tenonry.errors import EngineGenerateError, RequestError, Unsupported
from tenonry_testkit.plugins import TmpPlugins

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("one_thread")]
SETTINGS: dict[str, Any] = {
    "model": "demo",
    "worker": "null",
    "max_num_seqs": 4,
    "max_model_len": 64,
}
ONE = SamplingParams(max_tokens=1, detokenize=False)
SOURCE = """
    from fastapi import APIRouter

    from tenonry.errors import RequestError
    from tenonry.interfaces.call_set import CallSet, FrontEndHalf
    from tenonry.interfaces.plugin import PluginOptions

    class MottoOptions(PluginOptions):
        most: int = 20

    class MottoCalls(CallSet):
        Options = MottoOptions

        def engine_half(self, engine):
            return EngineMotto(engine, self.context.options.most)

        def front_end_half(self, front_end):
            return Mottos(front_end)

    class EngineMotto:
        def __init__(self, engine, most):
            self._engine, self._most = engine, most
            self._motto = ""

        def get(self) -> str:
            return f"{self._engine.index}: {self._motto}"

        def set(self, motto: str) -> None:
            if len(motto) > self._most:
                raise ValueError(f"at most {self._most} characters")
            self._motto = motto

    class Mottos(FrontEndHalf):
        def __init__(self, front_end):
            self._front_end = front_end
            self._motto = ""

        async def get(self):
            return await self._front_end.calls.call("get")

        async def set(self, motto):
            await self._front_end.calls.change("set", motto)
            self._motto = motto

        async def differ(self):
            self._front_end.divergence.add("engines have mottos")

        async def on_join(self, engines):
            for index in engines:
                await self._front_end.calls.call_engine(index, "set", self._motto)

    def check_tenant(request, limits):
        if request.cache_salt == "blocked":
            raise RequestError("cache_salt: this tenant is blocked", "cache_salt", "blocked")

    def build(context):
        router = APIRouter()

        @router.get("/all")
        async def get():
            return await context.engine.calls["mottos"].get()

        @router.post("/all/{motto}")
        async def set(motto: str):
            await context.engine.calls["mottos"].set(motto)

        return router
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        plugins.distribution(
            "acme-mottos",
            "1.2",
            requires=["tenonry>=0.1,<0.2"],
            entry_points={
                "tenonry.call_sets": {"mottos": "acme_mottos:MottoCalls"},
                "tenonry.request_checks": {"tenant": "acme_mottos:check_tenant"},
                "tenonry.routes": {"mottos": "acme_mottos:build"},
            },
            modules={"acme_mottos": SOURCE},
        )
        yield plugins.folder


@pytest.mark.usefixtures("site")
def test_in_this_process():
    with LLM(call_sets=[{"name": "mottos", "options": {"most": 3}}], **SETTINGS) as llm:
        llm.calls["mottos"].set("abc")
        assert llm.calls["mottos"].get() == "0: abc"
        with pytest.raises(ValueError, match="at most 3 characters"):
            llm.calls["mottos"].set("abcd")
        with pytest.raises(Unsupported, match="'operations' is not in use; pip install tenonry-op"):
            llm.sleep()
        with pytest.raises(RequestError, match="this tenant is blocked"):
            llm.generate([[5]], ONE, cache_salt="blocked")
        assert llm.generate([[5]], ONE, cache_salt="other")[0].finished
        named = {(each.kind, each.name, each.version) for each in llm.info.plugins}
        assert named >= {("call_set", "mottos", "1.2"), ("request_check", "tenant", "1.2")}


async def begun(engine: AsyncLLM, request_id: str) -> asyncio.Task[int]:
    """A stream that has delivered a token."""
    tokens = engine.generate([5], SamplingParams(max_tokens=50, ignore_eos=True), request_id)
    await anext(tokens)

    async def rest() -> int:
        lengths = [len(output.outputs[0].token_ids) async for output in tokens]
        return lengths[-1]

    return asyncio.ensure_future(rest())


@pytest.mark.usefixtures("site", "forked_children")
def test_engines_that_join_or_come_back_know_what_the_others_do(monkeypatch, site):
    monkeypatch.setenv("PYTHONPATH", str(site))
    worker = {"name": "null", "options": {"step_ms": 20}}
    config = EngineConfig(
        **{**SETTINGS, "worker": worker},
        call_sets=["mottos", "operations", "scaling"],
        data_parallel_size=2,
    )
    engine = AsyncLLM(config)
    mottos = engine.calls["mottos"]

    async def main() -> None:
        await mottos.set("ready")
        assert await mottos.get() == ["0: ready", "1: ready"]
        await engine.scale(3)
        assert await mottos.get() == [f"{index}: ready" for index in range(3)]
        streams = [await begun(engine, str(number)) for number in range(3)]
        os.kill(engine.engine_pids["engine 0"], signal.SIGKILL)
        assert await asyncio.gather(*streams) == [50] * 3
        while True:
            try:
                found = await mottos.get()
            except Exception:  # while it is started again
                await asyncio.sleep(0.05)
            else:
                break
        assert found == [f"{index}: ready" for index in range(3)]
        with pytest.raises(EngineGenerateError, match="ValueError: at most 20 characters"):
            await mottos.set("x" * 21)
        await mottos.differ()
        with pytest.raises(Unsupported, match="engines have mottos"):
            await engine.replace_engines(scheduler="static")
        assert not await engine.is_sleeping()

    try:
        asyncio.run(main())
    finally:
        engine.shutdown()


def ask(server: Server, path: str, method: str = "GET") -> Any:
    request = urllib.request.Request(f"{server.url}{path}", method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.nightly
def test_over_http_with_several_api_servers(site):
    server = Server(
        Path("demo"), "--worker", "null", "--max-num-seqs", "4", "--data-parallel-size", "2",
        "--api-server-count", "2", "--call-set", "operations", "--call-set", "mottos",
        "--route", "mottos", PYTHONPATH=str(site),
    )  # fmt: skip
    try:
        server.ready()
        assert ask(server, "/plugins/mottos/all") == ["0: ", "1: "]
        ask(server, "/plugins/mottos/all/hello", "POST")
        for _ in range(8):  # whichever server answers
            assert ask(server, "/plugins/mottos/all") == ["0: hello", "1: hello"]
        client = server.client()
        done = client.completions.create(model="tiny", prompt="x", max_tokens=1)
        assert done.choices[0].finish_reason == "length"
    finally:
        server.close()
