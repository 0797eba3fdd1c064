"""Each process imports a plugin, and what it needs, from the same files."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tenonry.config import EngineConfig, PluginChoice
from tenonry.info import PluginRecord
from tenonry.plugin.discovery import find_entry_point
from tenonry.plugin.kinds import KINDS
from tenonry.plugin.manager import PluginManager

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
