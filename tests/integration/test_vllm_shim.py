"""Plugins written for vLLM, unchanged, in real engines: a stat logger and an IO processor of a pooling model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from test_pooling import tiny_models

from tenonry import LLM, SamplingParams
from tenonry.errors import RequestError
from tenonry.sampling_params import PoolingParams

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed"),
]
SOURCE = Path(__file__).parents[2] / "plugins" / "vllm-shim" / "tests" / "data" / "shim_plugins.txt"

EMBED = PoolingParams(task="embed")


@pytest.fixture(autouse=True)
def _importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "written_for_vllm"
    folder.mkdir()
    (folder / "shim_plugins.py").write_text(SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))


def test_a_stat_logger_counts_what_was_generated():
    choice = {"name": "vllm", "options": {"plugin": "shim_plugins:TokenCounter"}}
    with LLM(
        model="demo", max_num_seqs=4, stat_loggers=[choice], enable_prefix_caching=True
    ) as llm:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        found = llm.generate(["Once", "Twice upon"], params)
    counter = sys.modules["shim_plugins"].BUILT[-1]
    assert counter.generation_tokens == 12
    assert counter.prompt_tokens == sum(len(each.prompt_token_ids) for each in found)
    assert counter.finished == [("length", 6)] * 2
    assert len(counter.first_tokens) == 2
    assert counter.queries > 0
    assert counter.blocks > 0
    assert counter.logged >= 1


def test_an_io_processor_reads_data_and_answers_with_its_own_result(tmp_path: Path):
    model = tmp_path / "bert"
    tiny_models().save("bert", model)
    choice = {"name": "vllm", "options": {"plugin": "shim_plugins:Norm"}}
    settings = {"load_format": "auto", "dtype": "float32"}
    with LLM(model=str(model), **settings) as llm:
        [plain] = llm.encode(["the word cat"], EMBED)
    with LLM(model=str(model), io_processor=choice, **settings) as llm:
        [answer] = llm.encode([{"data": {"word": "cat"}}], EMBED)
        with pytest.raises(RequestError, match="data: must be an object with the field word"):
            llm.encode([{"data": 3}], EMBED)
    assert answer.prompt_token_ids == plain.prompt_token_ids
    assert answer.data["length"] == len(plain.data)
    assert answer.data["norm"] == pytest.approx(float(np.linalg.norm(plain.data)), rel=1e-5)
