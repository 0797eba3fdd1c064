"""`tenonry plugins check --mutate`: changes that the tests let live are named with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenonry.cli import main
from tenonry.errors import ConfigError
from tenonry_author_tools.mutants import mutants
from tenonry_author_tools.mutation import mutate, try_mutants
from tenonry_author_tools.subject import Subject
from tenonry_author_tools.suite import passes

SOURCE = '''
LIMIT = 3
def fits(count: int = 2, *, is_open=True):
    """Of three."""
    used: int = count + 1
    log("count")
    if not is_open and used < 3:
        raise ValueError(f"{count + 1}")
    return used
def nothing(): return None
'''
ADD = "def add(a, b):\n    return a + b\ndef near(a):\n    return a < 2\n"


def test_functions_are_mutated_and_annotations_defaults_and_texts_are_not():
    assert [(each.line, each.text) for each in mutants(SOURCE)] == [
        (5, "count + 1 → count - 1"),
        (5, "1 → 2"),
        (6, "log('count') → nothing"),
        (7, "not is_open and used < 3 → not is_open or used < 3"),
        (7, "not is_open → is_open"),
        (7, "used < 3 → used <= 3"),
        (7, "3 → 4"),
        (8, "raise ValueError(f'{count + 1}') → nothing"),
        (9, "return used → return None"),
    ]


@pytest.mark.parametrize(("before", "after"), [
    ("a == b", "a != b"), ("a is b", "a is not b"), ("a in b", "a not in b"), ("a >= b", "a > b"),
    ("a or b", "a and b"), ("a * b", "a // b"), ("True", "False"),
])  # fmt: skip
def test_operators(before: str, after: str):
    texts = [each.text for each in mutants(f"def f(a, b):\n    return {before}\n")]
    assert texts == [f"return {before} → return None", f"{before} → {after}"]


def test_each_mutant_is_a_whole_module_with_one_change():
    for mutant in mutants(ADD):
        names: dict[str, object] = {}
        compile(mutant.source, "mutant", "exec")
        assert mutant.source.count("def ") == 2, names


class Needs:
    """Tests of a file, without a process: each is a text that must be in the file, or an error if it must not."""

    def __init__(self, file: Path, *wanted: str) -> None:
        self.file = file
        self.wanted = wanted
        self.count = 0

    def __call__(self) -> bool:
        self.count += 1
        return all(text in self.file.read_text() for text in self.wanted)


def test_survivors_are_what_no_test_notices(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(ADD)
    tests = Needs(file, "return a + b", "def near")
    outcome = try_mutants([file], tests, 100)
    assert [(each.line, each.text) for _, each in outcome.survivors] == [
        (4, "return a < 2 → return None"), (4, "a < 2 → a <= 2"), (4, "2 → 3"),
    ]  # fmt: skip
    assert str(outcome) == "mutants: 2 of 5 killed, 5 in total"
    assert file.read_text() == ADD
    assert tests.count == 6


def test_a_sample_is_the_same_each_time(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(ADD)
    found = [try_mutants([file], Needs(file, "def"), 2) for _ in range(2)]
    assert found[0] == found[1]
    assert (found[0].num_tried, found[0].num_all) == (2, 5)


def test_tests_of_other_files_are_refused(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(ADD)
    with pytest.raises(ConfigError, match="import other files"):
        try_mutants([file], lambda: True, 2)
    assert file.read_text() == ADD


def test_files_that_are_no_python_are_skipped(tmp_path: Path):
    texts = {
        "mine.py": ADD.encode(),
        "template.py": b"class {{ name }}:\n",
        "latin.py": b"# \xff\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    tests = Needs(tmp_path / "mine.py", "return a + b", "def near")
    assert try_mutants([tmp_path / name for name in texts], tests, 100).num_all == 5
    assert {name: (tmp_path / name).read_bytes() for name in texts} == texts


def test_a_package_without_tests_has_none_to_run(tmp_path: Path):
    source = tmp_path / "mine/src"
    source.mkdir(parents=True)
    subject = Subject("mine", "1", [], *2 * [tmp_path / "mine/pyproject.toml"], path=[source])
    with pytest.raises(ConfigError, match="there are no tests to run for mine"):
        mutate(subject, 1)


@pytest.mark.parametrize("number", ["0", "-3", "many"])
def test_the_number_is_at_least_one(number: str, capsys):
    with pytest.raises(SystemExit):
        main(["plugins", "check", "mine", "--mutate", number])
    assert (
        f"argument --mutate: {'' if number != 'many' else chr(39)}{number}"
        in capsys.readouterr().err
    )


@pytest.mark.integration
@pytest.mark.parametrize(("end", "has_passed"), [("", True), ("__import__('os')._exit(0)", False)])
def test_tests_that_were_cut_off_have_not_passed(end: str, has_passed: bool, tmp_path: Path):
    file = tmp_path / "test_it.py"
    file.write_text(f"def test_it():\n    assert True\n    {end}\n")
    subject = Subject("mine", "1", [], *2 * [tmp_path / "pyproject.toml"])
    assert passes(subject, file, tmp_path, tmp_path) == has_passed


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.slow
def test_a_package_is_checked_with_mutants(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "new", "point", "mine"]) == 0
    plugin = tmp_path / "mine/src/mine/plugin.py"
    plugin.write_text(plugin.read_text() + "\n\ndef near(number):\n    return number < 2\n")
    capsys.readouterr()
    assert main(["plugins", "check", "./mine", "--mutate", "100", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["grade"] == "B"
    found = [each for each in answer["findings"] if "number < 2 → number <= 2" in each["text"]]
    assert found[0]["rule"] == "PL303"
    assert found[0]["file"] == str(plugin)
    assert plugin.read_text().splitlines()[found[0]["line"] - 1] == "    return number < 2"
    assert answer["mutants"]["tried"] == answer["mutants"]["all"] >= 3
