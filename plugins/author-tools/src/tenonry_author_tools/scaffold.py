"""Packages of new plugins, made from the template of their kind. Command line.

A template is a folder of `templates/` with the name of its kind: `kind.toml`, a module, its tests, and further files of
the package in `files`, filled in if they end in `.tmpl`. `templates/package` has the files that all kinds share.
"""

from __future__ import annotations

import keyword
import re
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Any

from tenonry.errors import ConfigError
from tenonry.plugin import Point
from tenonry.version import __version__
from tenonry_author_tools.badge import COLORS, UNCHECKED, svg

TEMPLATES = files("tenonry_author_tools") / "templates"
SHARED = "package"
SUFFIX = ".tmpl"
DEFAULT_TARGET = "$package.plugin:$cls"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True)
class KindTemplate:
    """`kind.toml` of a kind.

    `requires` and `test`: distributions of this project. `packages` and `test_packages`: requirements of others.
    `testkit`: extra of the testkit. `pytest`: options of long suites.
    `target`: value of the entry point. `extra_points`: further entry points by group.
    `use`: command that shows the plugin at work. `page`: how-to page.
    """

    summary: str
    use: str
    page: str
    requires: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    test: list[str] = field(default_factory=list)
    test_packages: list[str] = field(default_factory=list)
    testkit: str = ""
    pytest: str = ""
    target: str = DEFAULT_TARGET
    extra_points: dict[str, dict[str, str]] = field(default_factory=dict)


def kinds() -> list[str]:
    """Kinds that have a template, sorted."""
    return sorted(each.name for each in TEMPLATES.iterdir() if each.name != SHARED)


def version_range(version: str = __version__) -> str:
    """Versions of this project that a new package requires: this one, up to the next that may break it."""
    major, minor = version.split(".")[:2]
    return f">={major}.{minor},<{major}.{int(minor) + 1}"


def package_files(point: Point, name: str) -> dict[str, str]:
    """Files of a new package with one plugin, by path. Raises ConfigError for a name that cannot be one."""
    _check_name(name)
    folder = TEMPLATES / point.kind
    made = KindTemplate(**tomllib.loads((folder / "kind.toml").read_text("utf-8")))
    package = name.replace("-", "_")
    words = {
        "name": name,
        "package": package,
        "cls": "".join(map(str.capitalize, name.split("-"))),
        "kind": point.kind.replace("_", " "),
    }
    words |= {key: _filled(getattr(made, key), words) for key in ("summary", "use")}
    if point.tier == "alpha":
        words["use"] += " --allow-experimental-plugins"
    words |= _metadata(made, point, words)
    shared = TEMPLATES / SHARED
    found = {
        "pyproject.toml": _read(shared / "pyproject.toml.tmpl", words),
        "README.md": _read(shared / "README.md.tmpl", words),
        "badge.svg": svg("tenonry", UNCHECKED, COLORS["C"]),
        ".github/workflows/ci.yml": _read(shared / "ci.yml.tmpl", words),
        f"src/{package}/__init__.py": f'"""{words["summary"]}"""\n',
        f"src/{package}/py.typed": "",
        f"src/{package}/plugin.py": _read(folder / "plugin.py.tmpl", words),
        "tests/test_plugin.py": _read(folder / "test_plugin.py.tmpl", words),
    }
    return found | {
        f"src/{package}/{path.removesuffix(SUFFIX)}": (
            _filled(text, words) if path.endswith(SUFFIX) else text
        )
        for path, text in _further(folder / "files", "").items()
    }


def write_package(point: Point, name: str, folder: Path) -> list[Path]:
    """Write a new package into `folder`; returns its files. Raises ConfigError where anything is there already."""
    made = package_files(point, name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty; give an empty or new folder with --into")
    paths = []
    for relative, text in made.items():
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        paths.append(path)
    return paths


def _check_name(name: str) -> None:
    package = name.replace("-", "_")
    if not NAME.fullmatch(name) or keyword.iskeyword(package) or name == "tests":
        raise ConfigError(
            f"name '{name}': write lower-case words and digits with single dashes between, such as short-first"
        )


def _metadata(made: KindTemplate, point: Point, words: dict[str, str]) -> dict[str, str]:
    """Requirements and entry points, as the lines of pyproject.toml."""
    bound = version_range()
    testkit = f"tenonry-testkit[{made.testkit}]" if made.testkit else "tenonry-testkit"
    runs = [f"{each}{bound}" for each in ("tenonry", *made.requires)] + made.packages
    tests = [f"{each}{bound}" for each in ("tenonry-author-tools", testkit, *made.test)]
    groups = {point.group: {words["name"]: made.target}} | made.extra_points
    lines: list[str] = []
    for group, entries in groups.items():
        lines += [f'[project.entry-points."{_filled(group, words)}"]']
        lines += [f'{key} = "{_filled(value, words)}"' for key, value in entries.items()] + [""]
    return {
        "dependencies": _quoted(runs),
        "test_dependencies": _quoted(["pytest>=8", *tests, *made.test_packages]),
        "entry_points": "\n".join(lines).rstrip(),
        "pytest_options": f'\naddopts = "{made.pytest}"' if made.pytest else "",
    }


def _quoted(lines: list[str]) -> str:
    return "\n".join(f'    "{line}",' for line in lines)


def _filled(text: str, words: dict[str, Any]) -> str:
    return Template(text).substitute(words)


def _read(file: Traversable, words: dict[str, str]) -> str:
    return _filled(file.read_text("utf-8"), words)


def _further(folder: Traversable, prefix: str) -> dict[str, str]:
    """Texts of all files below a folder, by path."""
    found: dict[str, str] = {}
    for each in folder.iterdir() if folder.is_dir() else ():
        path = f"{prefix}{each.name}"
        found |= _further(each, f"{path}/") if each.is_dir() else {path: each.read_text("utf-8")}
    return found
