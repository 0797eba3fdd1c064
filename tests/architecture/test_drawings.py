"""The drawing of the docs is that of its source, and the source agrees with the code."""

from __future__ import annotations

import ast
import copy
import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

import pytest
from house import ROOT

from tenonry.plugin.kinds import EVERY_INSTALLED, KINDS

sys.path.append(str(ROOT / "docs" / "drawings"))
import draw

PLUGINS = KINDS | {point.kind: point for point in EVERY_INSTALLED}


def names_in(files: list[Path]) -> set[str]:
    """Attributes, names and texts of the sources, and `A.B` for attributes of names."""
    found: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
                if isinstance(node.value, ast.Name):
                    found.add(f"{node.value.id}.{node.attr}")
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def target(part: dict[str, Any]) -> Any:
    """The class that a part stands for."""
    return pkgutil.resolve_name(part.get("code") or PLUGINS[part["plugin"]].base)


def sources(part: dict[str, Any]) -> list[Path]:
    if "source" in part:
        return sorted((ROOT / part["source"]).rglob("*.py"))
    return [Path(str(importlib.import_module(target(part).__module__).__file__))]


def differences(source: dict[str, Any]) -> list[str]:
    """Arrows that the code does not have."""
    parts = source["part"]
    found = []
    for caller, targets in source["calls"].items():
        used = names_in(sources(parts[caller]))
        for called, call in targets.items():
            if call not in used:
                found.append(f"{caller} does not use {call}")
            is_method = hasattr(target(parts[called]), call)
            if not is_method and call not in names_in(sources(parts[called])):
                found.append(f"{called} does not have {call}")
    return found


def test_drawing_is_that_of_its_source():
    assert draw.DRAWING.read_text("utf-8") == draw.draw(draw.read()), "run docs/drawings/draw.py"


def test_source_agrees_with_the_code():
    assert differences(draw.read()) == []


def test_kernel_has_no_orange_part_and_plugins_are_kinds():
    for name, part in draw.read()["part"].items():
        is_plugin = "plugin" in part
        assert is_plugin or part["code"].startswith("tenonry."), name
        assert not is_plugin or part["plugin"] in PLUGINS, name


@pytest.mark.parametrize(
    ("caller", "called", "call", "named"),
    [
        ("AsyncLLM", "InputProcessor", "no_such", "InputProcessor does not have no_such"),
        ("StatManager", "stat loggers", "shutdown_all", "StatManager does not use shutdown_all"),
        ("EngineCore", "scheduler", "name_blocks", "scheduler does not have name_blocks"),
    ],
)
def test_arrow_that_the_code_lacks_is_named(caller: str, called: str, call: str, named: str):
    source = copy.deepcopy(draw.read())
    source["part"]["scheduler"].pop("source")
    source["calls"][caller][called] = call
    assert named in differences(source)


def test_part_that_the_code_lacks_fails():
    source = copy.deepcopy(draw.read())
    source["part"]["CoreClient"]["code"] = "tenonry.client.core_client:NoSuch"
    with pytest.raises(Exception, match="NoSuch"):
        differences(source)


def test_the_timeline_is_that_of_the_scheduler():
    """Else: python docs/drawings/timeline.py."""
    from timeline import DRAWING, draw, record

    assert DRAWING.read_text(encoding="utf-8") == draw(record())


def test_drawings_of_the_tutorial_are_those_of_its_scheduler():
    """Else: python docs/drawings/your_scheduler.py."""
    from your_scheduler import files

    for path, text in files().items():
        assert path.read_text(encoding="utf-8") == text, path.name


def test_the_view_of_top_is_that_of_its_figures():
    """Else: python docs/drawings/top.py, after other figures with --record."""
    from top import DRAWING, FIGURES, draw

    from tenonry_author_tools.samples import summary

    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    assert found.keys() == summary([], [], 1.0).keys()
    assert DRAWING.read_text(encoding="utf-8") == draw(found)
