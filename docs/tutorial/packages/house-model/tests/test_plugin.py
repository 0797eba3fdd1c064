"""The conformance suite of models, with and without a store, and the model in an engine."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from tenonry import LLM, SamplingParams
from tenonry.errors import ModelError
from tenonry_testkit.model import ModelContract

from house_model.plugin import NAME, STORE, model_path


@pytest.fixture
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with this version of the model."""
    monkeypatch.delenv(STORE, raising=False)
    shutil.copytree(model_path(), tmp_path / NAME / version(NAME))
    monkeypatch.setenv(STORE, str(tmp_path))


class TestWithoutStore(ModelContract):
    model = "house_model.plugin:model_path"
    has_weights = False


@pytest.mark.usefixtures("_store")
class TestInStore(ModelContract):
    model = "house_model.plugin:model_path"
    has_weights = False


@pytest.mark.usefixtures("_store")
def test_an_engine_reads_its_configuration(tmp_path: Path) -> None:
    assert Path(model_path()).is_relative_to(tmp_path)
    config = {"load_format": "dummy", "io_processor": "none", "worker": "null"}
    with LLM(model=model_path(), **config) as llm:
        params = SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False)
        (output,) = llm.generate([{"prompt_token_ids": [1, 2, 3]}], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4


def test_a_missing_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE, str(tmp_path))
    with pytest.raises(ModelError, match=NAME):
        model_path()
