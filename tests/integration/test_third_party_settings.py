"""One third-party distribution brings a worker with two settings, a call set, a request check and a recovery that logs,
each with settings of its own: in the help, a YAML file, variables, over HTTP, and after an engine was killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from server_process import Server

from tenonry import LLM, EngineConfig
from tenonry.cli import main
from tenonry.errors import ConfigError
from tenonry.plugin.discovery import EXCLUDED, EXPERIMENTAL
from tenonry.plugin.manager import PluginManager
from tenonry_testkit.plugins import TmpPlugins

pytestmark = pytest.mark.timeout(180)
SOURCE = '''
import logging

from fastapi import APIRouter

from tenonry.config import setting
from tenonry.errors import RequestError
from tenonry.interfaces.call_set import CallSet, FrontEndHalf
from tenonry.interfaces.plugin import PluginSettings
from tenonry_bench.null_worker import NullWorker
from tenonry_recovery.recovery import ResumeStreams
from tenonry_recovery.settings import RecoverySettings


class ChipSettings(PluginSettings):
    chip_lanes: int = setting(2, ge=1, le=4096, alias="-L")
    """Lanes of the chip."""
    chip_key: str = setting("", repr=False, env="CHIP_SECRET")
    """Key of the chip."""


class ChipWorker(NullWorker):
    Settings = ChipSettings
    rpc_methods = frozenset({"chip", *NullWorker.rpc_methods})

    def chip(self):
        settings = self.context.config.section(ChipSettings)
        return [settings.chip_lanes, len(settings.chip_key)]


class NoteSettings(PluginSettings):
    note_limit: int = setting(20, ge=1)
    """Longest note in characters."""


class NoteCalls(CallSet):
    Settings = NoteSettings

    def engine_half(self, engine):
        return EngineNotes(engine, self.context.config.section(NoteSettings).note_limit)

    def front_end_half(self, front_end):
        return Notes(front_end.calls)


class EngineNotes:
    def __init__(self, engine, limit):
        self._engine, self._limit = engine, limit
        self._note = ""

    def get(self) -> list:
        return [self._note, self._limit, *self._engine.call_workers("chip")[0]]

    def set(self, note: str) -> None:
        self._note = note


class Notes(FrontEndHalf):
    def __init__(self, calls):
        self._calls = calls
        self._note = ""

    async def get(self):
        return await self._calls.call("get")

    async def set(self, note):
        await self._calls.change("set", note)
        self._note = note

    async def on_join(self, engines):
        for index in engines:
            await self._calls.call_engine(index, "set", self._note)


class TenantSettings(PluginSettings):
    blocked_tenants: tuple[str, ...] = setting((), nargs="+")
    """Tenants whose requests are rejected."""


def check_tenant(request, limits):
    if request.cache_salt in limits.config.section(TenantSettings).blocked_tenants:
        raise RequestError("cache_salt: this tenant is blocked", "cache_salt", "blocked")


check_tenant.Settings = TenantSettings


class LogSettings(RecoverySettings):
    death_note: str = ""
    """Beginning of the line that is logged when an engine dies."""


class LogRecovery(ResumeStreams):
    Settings = LogSettings

    def on_death(self, index, death, requests):
        note = self.context.config.section(LogSettings).death_note
        logging.getLogger("tenonry.acme").error("%s engine %d: %s", note, index, death)
        return super().on_death(index, death, requests)


class OtherSettings(PluginSettings):
    chip_lanes: str = ""
    """Something else."""


class OtherCalls(CallSet):
    Settings = OtherSettings


class GreedySettings(PluginSettings):
    max_num_seqs: int = 1
    """The kernel's own."""


class GreedyCalls(CallSet):
    Settings = GreedySettings


class ShortSettings(PluginSettings):
    short_lanes: int = setting(1, alias="-L")
    """Lanes of another one."""


class ShortCalls(CallSet):
    Settings = ShortSettings


def build(context):
    router = APIRouter()

    @router.get("/all")
    async def get():
        return await context.engine.calls["notes"].get()

    @router.post("/all/{note}")
    async def set(note: str):
        await context.engine.calls["notes"].set(note)

    return router
'''
CHIP = "worker 'chip' (acme_chip:ChipWorker, acme-chip 2.1)"
OTHER = "call set 'others' (acme_chip:OtherCalls, acme-chip 2.1)"
GREEDY = "call set 'greedy' (acme_chip:GreedyCalls, acme-chip 2.1)"
YAML = """
worker: chip
call-sets: [notes, operations]
engine-recovery: log
allow-experimental-plugins: true
route: [notes]
max_num_seqs: 4
chip-lanes: 3
death_note: acme says
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        plugins.distribution(
            "acme-chip",
            "2.1",
            requires=["tenonry>=0.1,<0.2"],
            entry_points={
                "tenonry.workers": {"chip": "acme_chip:ChipWorker"},
                "tenonry.call_sets": {
                    "notes": "acme_chip:NoteCalls",
                    "others": "acme_chip:OtherCalls",
                    "greedy": "acme_chip:GreedyCalls",
                    "short": "acme_chip:ShortCalls",
                },
                "tenonry.request_checks": {"tenant": "acme_chip:check_tenant"},
                "tenonry.engine_recoveries": {"log": "acme_chip:LogRecovery"},
                "tenonry.routes": {"notes": "acme_chip:build"},
            },
            modules={"acme_chip": SOURCE},
        )
        yield plugins.folder


def ask(server: Server, path: str, method: str = "GET") -> Any:
    request = urllib.request.Request(f"{server.url}{path}", method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_a_file_variables_http_and_a_killed_engine(site, tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_text(YAML, "utf-8")
    server = Server(
        Path("demo"), "--config", str(path), "--note-limit", "5", PYTHONPATH=str(site),
        TENONRY_CHIP_SECRET="hunter2", TENONRY_BLOCKED_TENANTS="mallory,eve",
    )  # fmt: skip
    try:
        server.ready()
        ask(server, "/plugins/notes/all/hello", "POST")
        known = [["hello", 5, 3, len("hunter2")]]
        assert ask(server, "/plugins/notes/all") == known
        fields: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 1}
        client = server.client()
        with pytest.raises(openai.BadRequestError, match="this tenant is blocked"):
            client.completions.create(**fields, extra_body={"cache_salt": "eve"})
        dead = server.engine_pid()
        os.kill(dead, signal.SIGKILL)
        done = client.completions.create(**fields)  # waits for the engine that comes back
        assert done.choices[0].finish_reason == "length"
        assert ask(server, "/plugins/notes/all") == known
        assert server.engine_pid() != dead
        assert "acme says engine 0: " in server.output
        assert "hunter2" not in server.output
    finally:
        server.close()


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine recoveries are an alpha point."""
    monkeypatch.setenv(EXPERIMENTAL, "1")


@pytest.mark.usefixtures("site", "allowed")
class TestCommandLine:
    def help(self, capsys, *words: str) -> str:
        with pytest.raises(SystemExit) as caught:
            main(["serve", "demo", *words, "--help"])
        assert caught.value.code == 0
        return " ".join(capsys.readouterr().out.split())

    def test_each_has_its_heading(self, capsys):
        text = self.help(capsys, "--worker", "chip", "--call-set", "notes", "--engine-recovery=log")
        lanes = "--chip-lanes N, -L N Lanes of the chip. [default: 2; env: TENONRY_CHIP_LANES]"
        assert f"worker chip (acme-chip): {lanes}" in text
        assert "--chip-key CHIP_KEY Key of the chip. [default: none; env: TENONRY_CHIP_SE" in text
        assert "call set notes (acme-chip): --note-limit N Longest note" in text
        assert "request check tenant (acme-chip): --blocked-tenants" in text
        assert "engine recovery log (acme-chip): --engine-death {restart,stop} On engine" in text
        assert "--death-note DEATH_NOTE Beginning of the line" in text

    def test_those_that_are_not_chosen_are_left_out(self, capsys):
        text = self.help(capsys)
        assert "--chip-lanes" not in text
        assert "--blocked-tenants" in text  # every installed check runs
        assert "engine recovery resume (tenonry-recovery): --engine-death" in text

    def test_a_plugin_is_shown_with_its_settings(self, capsys):
        assert main(["plugins", "show", "worker/chip"]) == 0
        shown = capsys.readouterr().out
        assert "setting       --chip-lanes, -L: Lanes of the chip. (default 2)" in shown

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (["--chip-lanes", "3"], f"--chip-lanes belongs to {CHIP}; choose it with --worker chip"),
            (["-L", "3"], "-L belongs to worker 'chip'"),
            (["--worker", "chip", "--note-limit=3"], "--note-limit belongs to call set 'notes' (acme_chip:NoteCalls"),
        ],
    )  # fmt: skip
    def test_a_flag_of_another_plugin_names_it(self, capsys, words, text):
        assert main(["serve", "demo", *words]) == 1
        assert text in capsys.readouterr().err

    def test_a_flag_of_a_distribution_that_is_not_installed_names_it(self, capsys, monkeypatch):
        monkeypatch.setenv(EXCLUDED, "tenonry-scheduling")
        assert main(["serve", "demo", "--no-validate-scheduler"]) == 1
        text = "--no-validate-scheduler comes with: pip install tenonry-scheduling"
        assert text in capsys.readouterr().err

    def test_a_misspelt_flag_of_a_chosen_one_is_suggested(self, capsys):
        with pytest.raises(SystemExit):
            main(["serve", "demo", "--worker", "chip", "--chip-lane", "3"])
        assert "did you mean --chip-lanes?" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (["--worker", "chip", "--chip-lanes", "0"], "chip_lanes=0: "),
            (
                ["--worker", "chip", "--call-set", "others"],
                rf"{re.escape(CHIP)} at [^ ]+ and {re.escape(OTHER)} at [^ ]+ both claim the setting 'chip_lanes'",
            ),
            (
                ["--call-set", "greedy"],
                rf"tenonry itself at [^ ]+ and {re.escape(GREEDY)} at [^ ]+ both claim the setting 'max_num",
            ),
            (
                ["--worker", "chip", "--call-set", "short"],
                "call set short .acme-chip. at [^ ]+ and worker chip .acme-chip. at [^ ]+ both claim a flag",
            ),
        ],
    )  # fmt: skip
    @pytest.mark.usefixtures("ends_its_process")
    def test_what_is_wrong_is_refused_before_anything_loads(self, capsys, words, text):
        assert main(["serve", "demo", *words]) == 1
        assert re.search(text, capsys.readouterr().err)

    def test_keys_of_a_file_are_checked_alike(self, capsys, tmp_path):
        path = tmp_path / "c.yaml"
        for line, text in (
            ("chip_lanes: 3", "chip_lanes belongs to worker 'chip'"),
            ("chip_lane: 3\nworker: chip", "unknown setting 'chip_lane'; did you mean 'chip_la"),
        ):
            path.write_text(line, "utf-8")
            assert main(["serve", "demo", "--config", str(path)]) == 1
            assert text in capsys.readouterr().err


@pytest.mark.usefixtures("site", "one_thread")
def test_in_this_process(monkeypatch):
    monkeypatch.setenv("TENONRY_CHIP_SECRET", "abc")
    settings: dict[str, Any] = {"worker": "chip", "call_sets": ["notes"], "load_format": "dummy"}
    with LLM("demo", chip_lanes="1k", max_num_seqs=2, **settings) as llm:
        assert llm.calls["notes"].get() == ["", 20, 1000, 3]
        assert llm.info.usage["chip_lanes"] == "1k"
        assert "chip_key" not in llm.info.usage
    for name, text in (
        ("chip_lane", "unknown setting 'chip_lane'; did you mean 'chip_lanes'"),
        (
            "death_note",
            "setting 'death_note' belongs to engine recovery 'log' .*choose that plugin$",
        ),
    ):
        with pytest.raises(ConfigError, match=text):
            LLM("demo", **{name: 1}, **settings)
    config = EngineConfig(model="demo", chip_key="hunter2", **settings)
    plan = PluginManager().plan(config)
    assert "chip_key" in plan.secrets
    assert "hunter2" not in config.describe(plan.secrets)
