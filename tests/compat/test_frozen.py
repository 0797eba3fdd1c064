"""Frozen packages and configurations of each interface version: they run on this kernel, and on one that is newer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frozen
import pytest
import yaml

from tenonry import LLM, SamplingParams
from tenonry.config import EngineConfig
from tenonry.config.sources import make_config
from tenonry.errors import PluginIncompatible
from tenonry.info import PluginRecord
from tenonry.plugin import Point
from tenonry.plugin.checks import check_plugin
from tenonry.plugin.manager import find_plugin
from tenonry.plugin.plan import import_target
from tenonry_commands.plugins import points
from tenonry_testkit.plugins import TmpPlugins
from tenonry_testkit.tiers import nightly_unless

HERE = Path(__file__).parent
V1 = frozen.packages("v1")
UNVERSIONED = {"command", "route", "scheduling_policy"}  # of no interface version
QUICK = ("call_set", "command", "load_balancer", "route", "stat_logger")
SUITES = [(QUICK,), *(((kind,),) for kind in V1 if kind not in QUICK)]
KINDS: dict[str, Point] = {point.kind: point for point in points() if point.kind in V1}


def resolved(kind: str) -> tuple[Any, PluginRecord]:
    """A package's class and its record, checked as at a start, without options."""
    record = find_plugin(KINDS[kind], frozen.metadata(V1[kind])["name"])
    found = import_target(record)
    check_plugin(found, record, KINDS[kind])
    return found, record


def test_a_package_of_every_kind_that_may_become_stable_is_frozen():
    assert KINDS.keys() == V1.keys()
    assert len(V1) == 12


@pytest.mark.parametrize("version", frozen.VERSIONS)
def test_nothing_that_is_frozen_changes(version: str):
    """A later interface gets a folder of its own; this one shows that older plugins still run."""
    assert frozen.hashes(version) == frozen.recorded_hashes(version)


@pytest.mark.parametrize("kind", V1)
def test_each_declares_its_version(kind: str, frozen_site: TmpPlugins):
    found, record = resolved(kind)
    assert record.distribution == f"v1-{kind.replace('_', '-')}"
    assert vars(found).get("interface_version") == (None if kind in UNVERSIONED else 1)


@pytest.mark.parametrize("kind", sorted(V1.keys() - UNVERSIONED))
def test_a_kernel_runs_its_own_version_and_the_one_before(
    kind: str, frozen_site: TmpPlugins, monkeypatch: pytest.MonkeyPatch
):
    base: Any = KINDS[kind].load_base()
    for version in (1, 2):
        monkeypatch.setattr(base, "interface_version", version)
        assert resolved(kind)
    monkeypatch.setattr(base, "interface_version", 3)
    text = rf"'v1-.* speaks version 1 of the {kind} interface; this kernel can drive \[2, 3\]"
    with pytest.raises(PluginIncompatible, match=text):
        resolved(kind)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kinds", nightly_unless(lambda kinds: kinds == QUICK, SUITES), ids="-".join
)
def test_their_suites_pass_on_the_next_version(
    kinds: tuple[str, ...], frozen_site: TmpPlugins, tmp_path: Path
):
    folder = tmp_path / "tests"
    for kind in kinds:
        shutil.copytree(V1[kind] / "tests", folder / kind, ignore=frozen.CACHES)
    ini = tmp_path / "pytest.ini"
    ini.write_text("[pytest]\n")
    options = f"-q -p no:cacheprovider -p next_interfaces -c {ini} --import-mode=importlib"
    command = [sys.executable, "-m", "pytest", *options.split(), "--testkit-effort=0.1"]
    path = os.pathsep.join([str(frozen_site.folder), str(HERE)])
    done = subprocess.run(
        [*command, str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.parametrize("version", [1, 2])
def test_an_engine_runs_with_them(
    version: int, frozen_site: TmpPlugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for point in KINDS.values():
        if isinstance(point.base, str) and point.kind not in UNVERSIONED:
            monkeypatch.setattr(point.load_base(), "interface_version", version)
    given = yaml.safe_load((HERE / "v1/generate.yaml").read_text("utf-8"))
    settings = {name.replace("-", "_"): value for name, value in given.items()}
    with LLM(**settings) as llm:
        names = {record.name for record in llm.info.plugins if record.name.startswith("v1-")}
        assert names == {
            f"v1-{name}"
            for name in ("scheduler", "executor", "stat-logger", "kv-connector", "call-set")
        }
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        outputs = llm.generate(["Hello", "World", "!"], params)
        assert [len(output.outputs[0].token_ids) for output in outputs] == [40, 40, 40]
    assert list((tmp_path / "blocks").iterdir())


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("is_next", [False, True], ids=["this-version", "next-version"])
def test_a_server_runs_with_them(
    is_next: bool, frozen_site: TmpPlugins, start_server: Callable[..., Any]
):
    if is_next:
        frozen_site.distribution(
            "next-interfaces",
            entry_points={"tenonry.plugins": {"next-interfaces": "next_interfaces"}},
        )
    path = os.pathsep.join([str(frozen_site.folder), str(HERE)])
    words = ["serve", "--config", HERE / "v1/serve.yaml", "--port", "0"]
    server = start_server(*words, env={"PYTHONPATH": path}, timeout=60)
    body = json.dumps({"model": "demo", "prompt": "a fox", "max_tokens": 5}).encode()
    request = urllib.request.Request(
        f"{server.url}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 5
    with urllib.request.urlopen(f"{server.url}/plugins/v1-route/requests", timeout=30) as answer:
        assert json.load(answer) == {"unfinished": 0}
    assert "started engine 0, engine 1" in server.output


def test_every_setting_is_accepted():
    values = yaml.safe_load((HERE / "v1/settings.yaml").read_text("utf-8"))
    assert values.keys() <= EngineConfig.model_fields.keys()
    made = make_config(values).model_dump(mode="json")
    for name, value in values.items():
        found = made[name]
        if isinstance(found, dict):
            found = found["name"]
        elif isinstance(found, list):
            found = [each["name"] if isinstance(each, dict) else each for each in found]
        assert found == value, name
