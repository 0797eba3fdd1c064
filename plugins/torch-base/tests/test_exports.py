"""Exports of transformers from a file of the user's cache."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from transformers.utils.import_utils import define_import_structure

from tenonry_torch_base.exports import stored_exports


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tenonry" / "exports"


@pytest.fixture
def models(tmp_path):
    """The folder `models` of an installed package."""
    site = tmp_path / "site-packages"
    folder = site / "nets" / "models"
    (folder / "tiny").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "tiny" / "__init__.py").write_text("")
    (folder / "tiny" / "modeling_tiny.py").write_text('__all__ = ["Tiny"]\nclass Tiny: ...\n')
    (site / "nets-1.0.dist-info").mkdir()
    (site / "nets-1.0.dist-info" / "RECORD").write_text("nets")
    return folder


@pytest.fixture
def calls():
    return []


@pytest.fixture
def exports(calls):
    def define(folder, prefix=None):
        calls.append(folder)
        sources = {path.stem: {path.read_text()} for path in Path(folder).rglob("modeling_*.py")}
        return {frozenset({"torch", "vision"}): sources, frozenset(): {str(prefix): set()}}

    return stored_exports(define)


def test_exports_of_transformers_survive_the_file(cache):
    """With the real function, for the real installation."""
    folder = Path(transformers.__file__).parent / "models"
    wanted = define_import_structure(folder, "models")
    define = stored_exports(define_import_structure)
    assert define(folder, "models") == wanted
    assert list(cache.iterdir())
    assert define(folder, "models") == wanted


def test_sources_are_read_once(models, exports, calls, cache):
    wanted = exports(models, "models")
    assert "Tiny" in str(wanted)
    assert exports(models, prefix="models") == wanted
    assert len(calls) == 1
    assert len(list(cache.iterdir())) == 1


def test_the_package_itself_may_ask_by_its_own_source(models, exports, calls, cache):
    """As transformers.models does, without a prefix."""
    exports(str(models / "__init__.py"))
    exports(str(models / "__init__.py"))
    assert len(calls) == 1


OPENED = """
import sys
from tenonry_torch_base.imports import importing
opened = []
sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
with importing():
    import transformers.models
print(sum("/transformers/models/" in name and name.endswith(".py") for name in opened))
"""


@pytest.mark.slow
def test_sources_of_models_are_opened_by_the_first_process_alone(cache):
    run = [subprocess.check_output([sys.executable, "-c", OPENED], text=True) for _ in range(2)]
    assert int(run[0]) > 500
    assert int(run[1]) < 20


def test_another_installation_is_read_again(models, exports, calls, cache):
    exports(models, "models")
    record = next(models.parents[1].glob("*/RECORD"))
    record.write_text("nets, changed")
    (models / "tiny" / "modeling_tiny.py").write_text('__all__ = ["Other"]\nclass Other: ...\n')
    assert "Other" in str(exports(models, "models"))
    assert len(calls) == 2


@pytest.mark.parametrize(
    "damage", ["", "[", "[]", "{}", "[1]", '[[["torch"], ["a"]]]', json.dumps({"a": 1})]
)
def test_a_damaged_file_is_replaced(damage, models, exports, cache):
    wanted = exports(models, "models")
    (file,) = cache.iterdir()
    file.write_text(damage)
    assert exports(models, "models") == wanted
    assert exports(models, "models") == wanted
    assert file.read_text() != damage


def test_a_source_tree_is_read_each_time(models, exports, calls, cache):
    next(models.parents[1].glob("*/RECORD")).unlink()
    exports(models, "models")
    exports(models, "models")
    assert len(calls) == 2
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_costs_the_time_only(models, exports, calls, cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("no folder")
    assert exports(models, "models") == exports(models, "models")
    assert len(calls) == 2


def test_a_user_without_a_home_has_no_cache(models, exports, calls, monkeypatch):
    def home(_cls):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(home))
    exports(models, "models")
    exports(models, "models")
    assert len(calls) == 2


def test_one_model_is_no_installation(models, exports, cache):
    exports(models / "tiny")
    assert not cache.exists()
