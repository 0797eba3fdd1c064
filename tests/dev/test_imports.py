"""Who imports whom in a small tree, through imports, fixtures and the names of plugins."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.imports import ImportGraph


def importers(tree: Path, name: str, *, is_direct: bool = False) -> set[str]:
    """Names of the files that import `name`, without it."""
    found = ImportGraph().importers([tree / name], is_direct=is_direct)
    return {str(file.relative_to(tree)) for file in found} - {name}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ("plugins/box/src/tenonry_box/__init__.py", {"plugins/box/tests/test_box.py"}),
        (
            "core/tests/conftest.py",
            {f"core/tests/test_{name}.py" for name in ("base", "plain", "other")},
        ),
        ("tests/integration/helper.py", {"tests/integration/test_served.py"}),
        ("tests/integration/test_alone.py", set()),
    ],
)
def test_importers_are_those_that_import_it_or_stand_below_it(
    changed: str, found: set[str], tree: Path
):
    assert importers(tree, changed) == found


def test_a_test_imports_the_plugin_that_it_names_as_a_class_or_behind_a_flag(tree: Path):
    named = {"core/tests/test_plain.py", "tests/integration/test_served.py"}
    box = {"plugins/box/src/tenonry_box/__init__.py"}
    assert importers(tree, "core/src/tenonry/plain.py", is_direct=True) == named | box


def test_detours_count_unless_they_are_left_out(tree: Path):
    base = "core/src/tenonry/base.py"
    direct = {"core/src/tenonry/plain.py", "core/tests/test_base.py"}
    assert importers(tree, base, is_direct=True) == direct
    assert importers(tree, base) == direct | {
        "core/tests/test_plain.py",
        "plugins/box/src/tenonry_box/__init__.py",
        "plugins/box/tests/test_box.py",
        "tests/integration/test_served.py",
    }


def test_a_package_is_imported_with_its_modules(tree: Path):
    assert "core/tests/test_base.py" in importers(tree, "core/src/tenonry/__init__.py")
