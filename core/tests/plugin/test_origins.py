"""Each process imports a plugin, and its dependencies, from the same files."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import PluginError
from tenonry.info import PluginRecord
from tenonry.plugin.discovery import find_entry_point
from tenonry.plugin.kinds import KINDS
from tenonry.plugin.manager import PluginManager
from tenonry.plugin.plan import load_class
from tenonry_testkit.kernel.plugins import HOOKS, STAT_LOGGER

CONFIG = EngineConfig(model="m")
LOGGERS = KINDS["stat_logger"]
# Starts a child whose role comes from the first folder on the path that has it; prints the file of that module.
PARENT = """
import json, sys
from tenonry.launch.supervise import start_child
import {module}
child = start_child("x", "{module}:report", {{"file": sys.argv[1]}})
sys.exit(child.process.wait() or {module}.__file__ != json.load(open(sys.argv[1])))
"""
ROLE = """
import json
def report(payload):
    with open(payload["file"], "w") as file:
        json.dump(__file__, file)
    return 0
"""


def resolve(name: str) -> PluginRecord:
    return PluginManager(discover=False).resolve("stat_logger", PluginChoice(name=name), CONFIG)


@pytest.mark.integration
class TestSearchPath:
    @pytest.mark.parametrize("module", ["two_copies", "turtle"], ids=["copies", "standard-library"])
    def test_a_child_finds_the_copy_that_its_parent_found(self, tmp_path, module):
        """A script's folder comes first; it came after the standard library in children."""
        script, other = tmp_path / "script", tmp_path / "other"
        for folder in (script, other):
            folder.mkdir()
            (folder / f"{module}.py").write_text(ROLE, "utf-8")
        (script / "main.py").write_text(PARENT.format(module=module), "utf-8")
        command = [sys.executable, str(script / "main.py"), str(tmp_path / "found")]
        done = subprocess.run(
            command, env={"PYTHONPATH": str(other)}, capture_output=True, check=False, timeout=25
        )
        assert done.returncode == 0, done.stderr.decode()
        assert json.loads((tmp_path / "found").read_text("utf-8")) == str(script / f"{module}.py")


class TestNames:
    @pytest.mark.parametrize("value", ["acme:Mine [fast]", "acme:Mine[fast,more]", "acme : Mine"])
    def test_extras_of_an_entry_point_are_no_part_of_its_class(self, acme, value):
        acme.install("extra", entry_points={LOGGERS.group: {"extra": value}})
        found = find_entry_point(LOGGERS, "extra")
        assert found is not None
        assert found.target == "acme:Mine"
        assert resolve("extra").target == "acme:Mine"

    @pytest.mark.parametrize("name", ["queue:Mine", "turtle:Mine", "__main__:Mine"])
    def test_a_name_of_the_standard_library_is_refused(self, acme, name):
        """The module that a process gets would depend on its earlier imports."""
        (acme.folder / f"{name.partition(':')[0]}.py").write_text(STAT_LOGGER, "utf-8")
        with pytest.raises(PluginError, match=r"cannot be imported by other .* path\.py:Mine"):
            resolve(name)


class TestFiles:
    def test_a_file_beside_can_be_imported_in_any_process(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "path", sys.path[:])
        (tmp_path / "beside_it.py").write_text("VALUE = 5", "utf-8")
        file = tmp_path / "mine.py"
        file.write_text(STAT_LOGGER + "\nfrom beside_it import VALUE\n", "utf-8")
        record = resolve(f"{file}:Mine")
        sys.modules.pop(record.target.partition(":")[0])
        sys.modules.pop("beside_it")
        monkeypatch.setattr(sys, "path", sys.path[:-1])  # as in another process
        assert load_class(record).__name__ == "Mine"

    def test_what_is_installed_wins_over_a_file_beside(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "path", sys.path[:])
        (tmp_path / "turtle.py").write_text("1 / 0", "utf-8")
        (tmp_path / "mine.py").write_text(STAT_LOGGER + f"\n# {tmp_path}\n", "utf-8")
        resolve(f"{tmp_path / 'mine.py'}:Mine")
        assert sys.path[-1] == str(tmp_path)

    def test_it_does_not_get_the_file_beside_another_one(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "path", sys.path[:])
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "lane_helper.py").write_text(f"VALUE = '{name}'", "utf-8")
        source = STAT_LOGGER + "\nfrom lane_helper import VALUE\n"
        (tmp_path / "one" / "first.py").write_text(source + f"# {tmp_path}\n", "utf-8")
        (tmp_path / "two" / "second.py").write_text(source, "utf-8")
        (tmp_path / "two" / "third.py").write_text(STAT_LOGGER + "\nVALUE = 1\n", "utf-8")
        resolve(f"{tmp_path / 'one' / 'first.py'}:Mine")
        with pytest.raises(
            PluginError, match=r"imports .*two/lane_helper\.py, and beside .*first\.py there is"
        ):
            resolve(f"{tmp_path / 'two' / 'second.py'}:Mine")
        resolve(f"{tmp_path / 'two' / 'third.py'}:Mine")  # it imports nothing beside it


class TestCopies:
    def test_two_copies_of_a_distribution_are_reported(self, acme, tmp_path, monkeypatch, caplog):
        other = tmp_path / "other"
        info = other / "acme-9.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 9.0\n")
        resolve("good")
        assert "copies" not in caplog.text
        monkeypatch.setattr(sys, "path", [*sys.path, str(other)])
        record = resolve("good")
        assert (record.distribution, record.version) == ("acme", "2.5")
        assert f"first of several copies of acme: ['{acme.folder}', '{other}']" in caplog.text


class TestAnswers:
    @pytest.mark.parametrize("answer", ["nowhere_at_all:Mine", "acme:Stranger", "acme"])
    def test_a_hook_that_answers_for_any_name_is_named(self, acme, answer):
        """Otherwise the reason why an installed name is not found would stay unknown."""
        module = HOOKS.format(answer=answer, name="good")
        acme.install("eager", version="3.1", modules={"eager.py": module})
        manager = PluginManager(discover=False)
        manager.register(importlib.import_module("eager"), name="eager-hooks")
        with pytest.raises(PluginError) as caught:
            manager.resolve("stat_logger", PluginChoice(name="good"), CONFIG)
        assert "tenonry_get_stat_logger of eager-hooks answered" in str(caught.value)
        assert f"answered '{answer}' for 'good'" in str(caught.value)
