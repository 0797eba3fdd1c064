"""The page of supported versions: rows, results that stay, and what a machine lacks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from house import ROOT

from dev import matrix, paths


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with constraints and a page of one result."""
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\ntransformers==5.23.0\n")
    first = "| 3.11 | 2.11.0 | 5.17.0 | passed on 2026-01-02: smoke, 7 tests of suites |\n"
    (tmp_path / matrix.PAGE).write_text(matrix.HEAD + first)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    return tmp_path


def test_rows_are_all_combinations_and_results_stay(place: Path):
    assert matrix.matrix(["--page"]) == 0
    rows = matrix.ROW.findall((place / matrix.PAGE).read_text())
    assert len(rows) == 4 * 2 * 2
    assert rows[0][3] == "passed on 2026-01-02: smoke, 7 tests of suites"
    assert {row[3] for row in rows[1:]} == {"not run"}


def test_a_python_that_is_not_there_is_named(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    wheels = place / "wheels"
    wheels.mkdir()
    (wheels / "tenonry-0.1.0-py3-none-any.whl").touch()
    assert matrix.matrix(["--wheels", str(wheels), "3.14/2.13.0/5.23.0"]) == 0
    last = matrix.ROW.findall((place / matrix.PAGE).read_text())[-1]
    assert last[3] == "not run: no Python 3.14 on the machine"


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "usage: python3 dev.py matrix"),
        (["--wheels", "."], "has no wheel of tenonry; build them: python3 dev.py release --out"),
    ],
)
def test_wrong_arguments_are_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=message):
        matrix.matrix(words)


def test_an_unknown_combination_is_refused_with_the_known_ones(place: Path):
    (place / "tenonry-0.1.0-py3-none-any.whl").touch()
    with pytest.raises(SystemExit, match=r"no combination 3\.9/1/1; there are: 3\.11/2\.11\.0"):
        matrix.matrix(["--wheels", str(place), "3.9/1/1"])


def test_the_page_has_the_rows_of_today():
    rows = matrix.ROW.findall((ROOT / matrix.PAGE).read_text())
    assert [matrix.Combination(*row[:3]) for row in rows] == matrix.combinations()


def test_suites_are_files_of_this_tree():
    assert all((ROOT / suite).is_file() for suite in matrix.SUITES)
