"""Adapters of a folder: which names are theirs, and that none is unloaded while a request uses it."""

from __future__ import annotations

import asyncio

import pytest

from tenonry.config import EngineConfig
from tenonry_openai_server.adapter_folder import AdapterFolder
from tenonry_openai_server.adapters import ServedAdapters
from tenonry_openai_server.errors import APIError
from tenonry_openai_server.settings import ServerConfig


class Engines:
    """Have adapters, and take their time."""

    def __init__(self):
        self.names = []
        self.calls = []

    async def add_lora(self, name, path):
        self.calls.append(("add", name, path))
        await asyncio.sleep(0.01)
        self.names.append(name)

    async def remove_lora(self, name):
        self.calls.append(("remove", name))
        await asyncio.sleep(0.01)
        self.names.remove(name)

    async def collective_rpc(self, method):
        found = [f"{name}@digest" for name in self.names]
        await asyncio.sleep(0.01)
        return [found]


class Rig:
    def __init__(self, folder, most=2):
        for name in "abcd":
            (folder / name).mkdir()
            (folder / name / "adapter_config.json").write_text("{}")
        config = EngineConfig(model="tiny", max_loras=most)
        self.engines = Engines()
        self.served = ServedAdapters(
            config, is_shared=False, folder=AdapterFolder(str(folder), most)
        )

    async def begin(self, name, scope=None):
        scope = {} if scope is None else scope
        adapter = await self.served.of_request(self.engines, name, scope)
        assert adapter is not None
        assert adapter.name == name
        return scope

    async def run(self, *names):
        for name in names:
            self.served.release(await self.begin(name))


def test_the_one_used_longest_ago_makes_room(tmp_path):
    rig = Rig(tmp_path)
    asyncio.run(rig.run("a", "b", "a", "c", "a", "b"))
    removed = [name for kind, name, *_ in rig.engines.calls if kind == "remove"]
    assert removed == ["b", "c"]
    assert rig.engines.calls[0] == ("add", "a", str(tmp_path / "a"))


def test_none_is_unloaded_while_a_request_uses_it(tmp_path):
    rig = Rig(tmp_path)

    async def scene():
        first = await rig.begin("a")
        await rig.begin("a", first)  # requested twice: counted once
        second = await rig.begin("b")
        with pytest.raises(APIError, match=r"max_folder_loras=2") as busy:
            await rig.begin("c")
        assert (busy.value.status_code, busy.value.code) == (503, "adapters_busy")
        rig.served.release(second)
        await rig.begin("c")
        assert sorted(rig.engines.names) == ["a", "c"]
        rig.served.release(first)
        await rig.begin("d")
        assert sorted(rig.engines.names) == ["c", "d"]

    asyncio.run(scene())


def test_requests_that_come_together_load_one_once(tmp_path):
    rig = Rig(tmp_path)

    async def scene():
        scopes = await asyncio.gather(*(rig.begin(name) for name in "abab"))
        assert len(rig.engines.calls) == 2
        for scope in scopes:
            rig.served.release(scope)
        # A request whose adapter replaces another one's.
        await asyncio.gather(rig.run("c"), rig.run("a"), rig.run("b"))

    asyncio.run(scene())
    assert len(rig.engines.names) == 2


def test_a_request_that_ends_while_its_adapter_is_loaded_holds_nothing(tmp_path):
    rig = Rig(tmp_path, most=1)

    async def scene():
        scope = {}
        task = asyncio.create_task(rig.begin("a", scope))
        await asyncio.sleep(0.015)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        rig.served.release(scope)
        await rig.begin("b")
        assert rig.engines.names == ["b"]

    asyncio.run(scene())


def test_a_folder_needs_adapters_and_one_api_server(tmp_path):
    with pytest.raises(ValueError, match="max_folder_loras needs a lora_folder"):
        ServerConfig(max_folder_loras=2)
    with pytest.raises(ValueError, match="api_server_count=2 API servers knows"):
        ServerConfig(lora_folder=str(tmp_path), api_server_count=2)
    with pytest.raises(ValueError, match="is no folder"):
        ServerConfig(lora_folder=str(tmp_path / "none"))
