"""`tenonry plugins update`: a frozen package is carried over a move of these tests alone, and its suite passes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenonry.cli import main
from tenonry.interfaces.stat_logger import StatLogger
from tenonry_author_tools.rewrite import Rewriter, declared_version, edited
from tenonry_author_tools.scaffold import version_range
from tenonry_commands import moves
from tenonry_commands.moves import Moves
from tenonry_testkit.plugins import TmpPlugins

COMPAT = Path(__file__).parents[3] / "tests/compat"
FROZEN = COMPAT / "v1/packages/stat_logger"
# Interface version 2 of stat loggers: another module, and another name of `record`.
NEXT = """
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext as Context

class Observer(StatLogger):
    def observe(self, record): raise NotImplementedError
    def record(self, record): self.observe(record)
"""
MOVES = Moves(
    "stat_logger",
    2,
    {
        "tenonry.interfaces.stat_logger:StatLogger": "next_api:Observer",
        "tenonry.interfaces.stat_logger:StatLoggerContext": "next_api:Context",
    },
    {"record": "observe"},
)


@pytest.fixture
def package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_outside_settings: None
) -> Iterator[Path]:
    """A copy of the frozen stat logger, on a kernel whose stat loggers are of version 2."""
    monkeypatch.setattr(StatLogger, "interface_version", 2)
    monkeypatch.setattr(moves, "MOVES", (MOVES,))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p next_interfaces --testkit-effort=0.1")
    with TmpPlugins(tmp_path / "site", see_installed=True) as site:
        monkeypatch.setenv("PYTHONPATH", f"{site.folder}:{COMPAT}")
        site.module("next_api", NEXT)
        yield Path(shutil.copytree(FROZEN, tmp_path / "mine"))


def run(*words: object) -> int:
    return main(["plugins", "update", *map(str, words)])


@pytest.mark.integration
@pytest.mark.slow
def test_a_frozen_package_is_carried_and_its_suite_passes(package: Path, capsys: Any):
    assert run(package) == 0
    shown = capsys.readouterr().out
    assert "-    interface_version = 1\n+    interface_version = 2\n" in shown
    assert "-    def record(self, record: StatRecord) -> None:\n+    def observe(" in shown
    assert "-class V1StatLogger(StatLogger):\n+class V1StatLogger(Observer):" in shown
    assert shown.endswith("v1-stat-logger 0.1.0: updated 3 files\n")
    text = (package / "src/v1_stat_logger/plugin.py").read_text("utf-8")
    assert "from next_api import Observer, Context\n" in text
    assert f'"tenonry{version_range()}"' in (package / "pyproject.toml").read_text("utf-8")
    assert "Context(EngineConfig" in (package / "tests/test_plugin.py").read_text("utf-8")
    assert run(package, "--check") == 0
    assert capsys.readouterr().out == "v1-stat-logger 0.1.0: nothing to update\n"


@pytest.mark.integration
@pytest.mark.slow
def test_a_test_that_fails_afterwards_is_reported(package: Path, capsys: Any):
    (package / "tests/test_plugin.py").write_text("def test_it():\n    assert 1 == 2\n")
    assert run(package) == 1
    assert "PL302 error: v1-stat-logger 0.1.0" in capsys.readouterr().out


def test_a_check_changes_nothing(package: Path, capsys: Any):
    before = {path: path.read_bytes() for path in package.rglob("*.*") if path.is_file()}
    assert run(package, "--check") == 1
    assert capsys.readouterr().out.endswith("v1-stat-logger 0.1.0: 3 files to update\n")
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (3, "is of version 3 .* carries version 1 to 2; install a newer tenonry"),
        (0, "is of version 0 .*; update it first with the release of tenonry before this one"),
    ],
)
def test_other_versions_are_refused(version: int, text: str, package: Path, capsys: Any):
    file = package / "src/v1_stat_logger/plugin.py"
    file.write_text(file.read_text("utf-8").replace("version = 1", f"version = {version}"))
    assert run(package) == 1
    assert re.search(text, capsys.readouterr().err)


def test_requirements_of_others_and_markers_stay(package: Path, capsys: Any):
    file = package / "pyproject.toml"
    text = file.read_text("utf-8")
    lines = (
        '"tenonry-acme>=2"',
        "'tenonry_scheduling>=9; python_version < \"4\"'",
        '"tenonry-kvcache @ file:///nowhere"',
    )
    start = text.index("dependencies = [") + len("dependencies = [")
    file.write_text(text[:start] + ", ".join(lines) + ", " + text[start:], "utf-8")
    assert run("--no-suite", package) == 0
    changed = file.read_text("utf-8")
    assert lines[0] in changed
    assert f"'tenonry_scheduling{version_range()}; python_version < \"4\"'" in changed
    assert lines[2] in changed


def test_a_package_of_the_current_version_needs_nothing(package: Path, monkeypatch, capsys: Any):
    monkeypatch.setattr(StatLogger, "interface_version", 1)
    assert run(package) == 0
    assert capsys.readouterr().out == "v1-stat-logger 0.1.0: nothing to update\n"


def test_the_shipped_table_is_of_current_versions():
    """Each entry raises a version; at version 1 there is none."""
    assert all(each.version > 1 for each in moves.MOVES)


NAMES = {"a.b:C": "d:E", "a.b:F": "d.e:F", "g.h": "i.j"}


@pytest.mark.parametrize(("old", "new"), [
    ("from a.b import C\nx = C()\n", "from d import E\nx = E()\n"),
    ("from a.b import C as K\nx = K()\n", "from d import E as K\nx = K()\n"),
    ("from a.b import C as K\nfrom m import C\n", "from d import E as K\nfrom m import C\n"),
    ("from a.b import C, D, F\n", "from d import E\nfrom a.b import D\nfrom d.e import F\n"),
    (
        "def f():\n    from a.b import (\n        D,\n        F,\n    )\n",
        "def f():\n    from a.b import D\n    from d.e import F\n",
    ),
    ("import g.h\nx = g.h.y.z\n", "import i.j\nx = i.j.y.z\n"),
    ("import g.h as k\nx = k.y\n", "import i.j as k\nx = k.y\n"),
    ("from g.h import x\n", "from i.j import x\n"),
    ("from a.b import D\nC = 'é'\ny = C\n", "from a.b import D\nC = 'é'\ny = C\n"),
])  # fmt: skip
def test_imports(old: str, new: str):
    assert edited(old, [*Rewriter(old).renamed_imports(NAMES)]) == new


SOURCE = """
class Mine(Base):
    interface_version: ClassVar[int] = 1
    limit = 3

    @cached
    async def  record(self, record):  # é
        await super().record(record.record)
        return self.limit, cls.record

class Other:
    interface_version = 1
    def record(self): self.record()
"""


def test_members_and_versions_of_the_plugin_alone():
    rewriter = Rewriter(SOURCE)
    members = {"record": "observe", "limit": "bound"}
    edits = [*rewriter.renamed_members({"Mine"}, members), *rewriter.raised_versions({"Mine"}, 2)]
    mine, _, other = edited(SOURCE, edits).partition("class Other")
    assert "async def  observe(self, record):  # é" in mine
    assert "super().observe(record.record)" in mine
    assert "return self.bound, cls.observe" in mine
    assert "    bound = 3" in mine
    assert "interface_version: ClassVar[int] = 2" in mine
    assert "class Other" + other == SOURCE[SOURCE.index("class Other") :]
    assert declared_version(mine, "Mine") == 2
    assert declared_version("class Mine: pass", "Mine") is None
