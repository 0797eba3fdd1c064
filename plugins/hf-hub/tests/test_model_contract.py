"""The suite of models, over folders that are right and over broken ones."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path

import pytest

from tenonry_testkit.model import ModelContract
from tenonry_testkit.outcomes import failing_tests

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
}


@pytest.fixture
def folder(tmp_path):
    """A model without weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    return tmp_path


def suite_of(model):
    return type("Suite", (ModelContract,), {"model": staticmethod(model), "has_weights": False})


@pytest.mark.correct("model")
def test_a_folder_without_weights_passes(folder):
    assert failing_tests(suite_of(lambda: str(folder))) == {}
    assert failing_tests(suite_of(lambda: folder)) == {}


def test_weights_are_promised(folder):
    suite = suite_of(lambda: str(folder))
    suite.has_weights = True
    assert "test_weights_are_there_where_they_are_promised" in failing_tests(suite)


def with_config(**changes):
    def change(folder):
        values = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(values), "utf-8")
        return lambda: str(folder)

    return change


def counted(folder):
    numbers = itertools.count()
    return lambda: str(folder) if next(numbers) % 2 else str(folder.parent)


def writing(folder):
    def answer():
        (folder / "seen").write_text("x", "utf-8")
        return str(folder)

    return answer


def private(folder):
    (folder / "config.json").chmod(0o600)
    return lambda: str(folder)


def broken_json(folder):
    (folder / "config.json").write_text("{", "utf-8")
    return lambda: str(folder)


FACTS = "test_facts_can_be_read"
IS_A_FOLDER = "test_it_is_a_folder_that_exists"
BROKEN = {
    "nothing": (lambda folder: lambda: None, IS_A_FOLDER),
    "relative": (lambda folder: lambda: "model", IS_A_FOLDER),
    "missing": (lambda folder: lambda: str(folder / "none"), IS_A_FOLDER),
    "file": (lambda folder: lambda: str(folder / "config.json"), IS_A_FOLDER),
    "argument": (lambda folder: lambda name: str(folder), "test_it_is_a_model_that_the_hub_finds"),
    "counted": (counted, "test_it_is_the_same_each_time"),
    "fresh": (lambda folder: lambda: tempfile.mkdtemp(dir=folder), "test_it_is_the_same_each_time"),
    "writing": (writing, "test_asking_has_no_effects"),
    "broken json": (broken_json, FACTS),
    "no architecture": (with_config(architectures=None), FACTS),
    "no vocabulary": (with_config(vocab_size=0), FACTS),
    "odd end": (with_config(eos_token_id=1000), "test_end_tokens_are_in_the_vocabulary"),
    "private": (private, "test_files_are_readable_by_all"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.broken("model")
def test_broken_ones_are_caught(name, folder):
    broken, wanted = BROKEN[name]
    assert wanted in failing_tests(suite_of(broken(folder)), [wanted])


def test_a_folder_that_is_written_to_is_noticed(folder, monkeypatch):
    """As where reading makes a cache in it."""
    suite = suite_of(lambda: str(folder))
    read = suite.info
    monkeypatch.setattr(suite, "info", lambda self: (Path(folder, "cache").touch(), read(self))[1])
    wanted = "test_reading_leaves_the_folder_as_it_was"
    assert wanted in failing_tests(suite, [wanted])
