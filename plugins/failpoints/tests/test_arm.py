"""Armed processes: real engines of fakes, in forks of the test process, so that nothing stays wrapped here."""

from __future__ import annotations

import asyncio
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenonry import AsyncLLM
from tenonry.config import PluginPolicy
from tenonry.errors import ConfigError, TenonryError
from tenonry.plugin.manager import PluginManager
from tenonry_failpoints import VARIABLE
from tenonry_failpoints.borders import BORDERS, names
from tenonry_testkit.kernel.forked import fork
from tenonry_testkit.served import collect, params, served_config, tokens

pytestmark = pytest.mark.usefixtures("fake_model_site", "forked_children")
PROMPTS = [[number, 5] for number in range(1, 7)]
SAMPLING = params(max_tokens=12)
HOOKS = {"allow": ["fake-model", "failpoints"]}


def test_without_faults_it_is_not_among_the_plugins_in_use(monkeypatch):
    policy = PluginPolicy(allow=("failpoints",))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert PluginManager(policy).hook_modules == []
    monkeypatch.setenv(VARIABLE, "engine.step=kill")
    assert [record.name for record in PluginManager(policy).hook_modules] == ["failpoints"]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def run(main: Callable[[], None], faults: str, shared: Path | None = None) -> None:
    """Run in a fork with these faults in its environment; its exception is in the captured errors."""

    def run_in_fork() -> int:
        os.environ["TENONRY_FAILPOINTS"] = faults
        if shared is not None:
            os.environ["TENONRY_FAILPOINTS_SHARED"] = str(shared)
        for name in [each for each in sys.modules if each.startswith("tenonry_failpoints")]:
            del sys.modules[name]  # imported, and not armed, by a test before
        main()
        return 0

    sys.stdout.flush()
    _, status = os.waitpid(fork(run_in_fork, []), 0)
    assert os.waitstatus_to_exitcode(status) == 0


def answers(**values: Any) -> list[list[int]]:
    """Answers of an engine to all prompts concurrently."""
    engine = AsyncLLM(served_config(plugins=HOOKS, engine_recovery="resume", **values))

    async def ask() -> list[list[int]]:
        calls = [collect(engine, prompt, SAMPLING, str(prompt)) for prompt in PROMPTS]
        return await asyncio.gather(*calls)

    try:
        return asyncio.run(ask())
    finally:
        engine.shutdown()


def check(**values: Any) -> None:
    assert answers(**values) == [tokens(prompt, SAMPLING) for prompt in PROMPTS]


def reached(shared: Path) -> dict[str, set[str]]:
    """Point → processes that came there."""
    return {
        file.name.partition(" ")[2]: {line.strip() for line in file.read_text("utf-8").splitlines()}
        for file in shared.iterdir()
    }


@pytest.mark.parametrize("border", BORDERS, ids=lambda border: border.before)
def test_a_border_is_a_method(border):
    assert callable(getattr(pkgutil.resolve_name(border.owner), border.method))


def test_every_point_is_reached_in_its_process(shared):
    values = {"data_parallel_size": 2, "kv_connector": "tenonry_testkit.fakes:MemoryConnector"}
    run(lambda: check(**values), ";".join(f"{name}=sleep:0" for name in names()), shared)
    found = reached(shared)
    # The scheduler of the fakes asks no connector, and one front end has no coordinator: tests/chaos has both.
    elsewhere = {name for name in names() if name.startswith("coordinator.") or "_match" in name}
    assert found.keys() == set(names()) - elsewhere
    front_end = {name for name in found if name.startswith(("client.", "fleet."))}
    for name, processes in found.items():
        assert processes == ({"front end"} if name in front_end else {"engine 0", "engine 1"}), name


@pytest.mark.parametrize("action", ["kill", "raise:KeyError", "exit:3"])
def test_a_fault_happens_once_and_streams_go_on(action, shared):
    run(check, f"engine.before_execute={action}@3", shared)
    assert len((shared / "0 engine.before_execute").read_text("utf-8").splitlines()) > 3


def test_a_fork_of_an_armed_process_has_its_own_faults(shared):
    def arm_and_fork() -> None:
        importlib.import_module("tenonry_failpoints.arm").arm("front end")
        run(check, "engine.before_execute=sleep:0", shared)

    run(arm_and_fork, "worker.before_load=sleep:0")
    assert reached(shared).keys() == {"engine.before_execute"}


def test_a_fault_of_one_process(shared):
    run(lambda: check(data_parallel_size=2), "worker.after_execute[engine 1]=kill@2", shared)
    assert reached(shared) == {"worker.after_execute": {"engine 1"}}


def test_an_engine_that_is_started_again_dies_before_it_can_be_used(shared):
    run(
        check,
        "engine.before_send=kill@2; engine.before_start=kill@2; fleet.after_start=raise@2",
        shared,
    )
    assert len((shared / "1 engine.before_start").read_text("utf-8").splitlines()) == 4


def test_without_shared_counters_every_engine_meets_it():
    def main() -> None:
        with pytest.raises(TenonryError, match="SIGKILL"):
            answers()

    run(main, "engine.before_send=kill")


def test_unset_nothing_is_wrapped():
    def main() -> None:
        check()
        assert "tenonry_failpoints.arm" not in sys.modules

    run(main, "")


@pytest.mark.parametrize(
    ("faults", "shared", "expected"),
    [
        ("engine.step=kill", None, "TENONRY_FAILPOINTS: there is no failpoint 'engine.step'"),
        ("engine.after_send=kill", "nowhere", "TENONRY_FAILPOINTS_SHARED=nowhere: there is no such folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_ends_the_start(faults, shared, expected):
    def main() -> None:
        with pytest.raises(ConfigError, match=expected):
            AsyncLLM(served_config(plugins=HOOKS))

    run(main, faults, shared)
