"""Tests that a change touches, in a small repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from house import ROOT

from dev import changed, environment, paths, testing

pytestmark = pytest.mark.integration
AS_SOMEBODY = ["-c", "user.name=a", "-c", "user.email=a@example.invalid"]


@pytest.fixture
def repository(tree: Path) -> Path:
    """The small tree, committed."""
    git(tree, "init", "--quiet", "--initial-branch=main")
    commit(tree)
    return tree


def git(folder: Path, *words: str) -> str:
    command = ["git", *AS_SOMEBODY, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=tests: commit a tree")


def touched(folder: Path, name: str, text: str, **options: bool) -> list[str]:
    """Tests that a file of this text touches."""
    (folder / name).write_text(text)
    return changed.touched("HEAD", **options)


def test_code_touches_the_tests_that_import_it_and_those_of_the_tree(repository: Path):
    found = touched(repository, "plugins/box/src/tenonry_box/__init__.py", "X = 1\n")
    assert found[:2] == ["plugins/box/tests/test_box.py", changed.TREE]
    assert not [path for path in found if path.startswith("core/")]


def test_a_docstring_touches_what_reads_words_and_runs_no_command(repository: Path):
    text = '"""Another sentence."""\n# A comment.\nVALUE = 1\n'
    found = touched(repository, "core/src/tenonry/base.py", text)
    assert found == [*changed.WORDS, *changed.PAGES, "-k", f"not {changed.COMMANDS}"]


def test_a_page_touches_its_own_commands(repository: Path):
    found = touched(repository, "README.md", "# Another tree\n")
    assert found == [*changed.WORDS, *changed.PAGES, "-k", f"not {changed.COMMANDS} or README"]


def test_data_of_a_distribution_touch_its_tests(repository: Path):
    found = touched(repository, "core/src/tenonry/data.json", "[]")
    assert found == [f"core/tests/test_{name}.py" for name in ("base", "other", "plain")] + [
        changed.TREE
    ]


@pytest.mark.parametrize("name", ["pyproject.toml", "conftest.py"])
def test_what_all_tests_read_touches_all(name: str, repository: Path):
    assert touched(repository, name, "# changed\n") == ["."]


def test_a_new_test_is_touched_and_one_that_is_gone_is_not(repository: Path):
    (repository / "core/tests/test_other.py").unlink()
    assert changed.touched("HEAD") == [
        changed.TREE,
        *changed.PAGES,
        "-k",
        f"not {changed.COMMANDS}",
    ]
    (repository / "core/tests/test_new.py").write_text("import json\n")
    assert "core/tests/test_new.py" in changed.touched("HEAD")


@pytest.mark.parametrize(
    "name",
    [
        "docs/how-to/write-a-box.md",
        "docs/tutorial/packages/box/pyproject.toml",
        "docs/tutorial/packages/box/tests/test_plugin.py",
    ],
)
def test_a_tutorial_touches_the_test_of_its_packages(name: str, repository: Path):
    (repository / name).parent.mkdir(parents=True, exist_ok=True)
    found = touched(repository, name, "import json\n")
    assert changed.TUTORIALS in found
    assert name not in found


def test_nothing_touches_nothing(repository: Path):
    assert changed.touched("HEAD") == []


def test_without_detours_only_what_imports_it_itself_is_touched(repository: Path):
    found = touched(repository, "core/src/tenonry/base.py", "VALUE = 2\n", is_direct=True)
    page = f"tests/integration/test_docs_for_authors.py::{changed.COMMANDS}[write-a-box]"
    assert found == ["core/tests/test_base.py", page]


def test_code_touches_the_commands_of_a_page_that_imports_it(repository: Path):
    found = touched(repository, "core/src/tenonry/base.py", "VALUE = 2\n")
    assert found[-1] == f"not {changed.COMMANDS} or write-a-box"


def test_commands_of_a_changed_page_run_at_once(repository: Path):
    found = touched(repository, "README.md", "# Another tree\n", is_direct=True)
    assert found == [f"tests/integration/test_docs.py::{changed.COMMANDS}[README]"]


def test_a_branch_is_compared_with_where_it_left_main(repository: Path):
    start = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "switch", "--quiet", "--create", "mine")
    (repository / "README.md").write_text("mine")
    commit(repository)
    assert changed.base([]) == start
    assert changed.base(["HEAD"]) != start
    with pytest.raises(SystemExit, match="no commit 'nowhere' to compare with"):
        changed.base(["nowhere"])


def test_main_is_compared_with_its_parent_if_it_has_one(repository: Path):
    with pytest.raises(SystemExit, match="no commit before this one"):
        changed.base([])
    start = git(repository, "rev-parse", "HEAD").strip()
    (repository / "README.md").write_text("more")
    commit(repository)
    assert changed.base([]) == start


@pytest.mark.parametrize(("more", "tier"), [([], "not nightly"), (["--nightly"], "nightly")])
def test_what_a_change_touches_runs_with_rays_apart(more, tier, tmp_path, monkeypatch, capfd):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\ncase "$*" in *executors*) exit 1;; *) exit 5;; esac\n')
    python.chmod(0o755)
    monkeypatch.setattr(paths, "PYTHON", python)
    monkeypatch.setattr(environment, "ensure_environment", lambda: None)
    chosen = ["core/tests/test_x.py", "executors/ray/tests/test_y.py"]
    monkeypatch.setattr(changed, "touched", lambda commit, is_direct: chosen)
    monkeypatch.chdir(ROOT)
    assert testing.test(["--changed", "HEAD", *more]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == chosen
    assert all(f"-m {tier} " in line for line in lines)


def test_a_change_that_touches_no_test_passes(monkeypatch, capfd):
    monkeypatch.setattr(environment, "ensure_environment", lambda: None)
    monkeypatch.setattr(changed, "touched", lambda commit, is_direct: [])
    monkeypatch.chdir(ROOT)
    assert testing.test(["--changed", "HEAD"]) == 0
    assert "touches no test" in capfd.readouterr().err


def test_every_file_that_changes_of_words_touch_exists():
    for path in (*changed.WORDS, *changed.PAGES, changed.TREE):
        assert (ROOT / path).exists(), path
    for path in changed.PAGES[:2]:
        assert f"def {changed.COMMANDS}(page" in (ROOT / path).read_text()
    reader = (ROOT / "tests" / "integration" / "page_reader.py").read_text()
    assert f'FOR_AUTHORS = re.compile("{changed.FOR_AUTHORS.pattern}")' in reader
