"""A request without parameters follows generation_config.json as transformers' `generate` does."""

from __future__ import annotations

import json

import pytest
import shallow_demo
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tenonry import LLM

PROMPT = "Once upon a time"


@torch.no_grad()
def generated(folder, **options):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    return model.generate(ids, **options)[0, ids.shape[1] :].tolist()


@pytest.mark.slow
def test_greedy_with_suppressed_tokens(tmp_path, caplog):
    folder = shallow_demo.save(tmp_path / "model", 2)
    config = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": [2, 0]}
    (folder / "generation_config.json").write_text(json.dumps(config))
    first, second, *_ = generated(folder)
    config |= {
        "suppress_tokens": [first], "bad_words_ids": [[second], [2]], "repetition_penalty": 1.3
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(config))
    expected = generated(folder)
    assert not {first, second} & set(expected)
    config |= {"no_repeat_ngram_size": 40, "num_beams": 2}
    (folder / "generation_config.json").write_text(json.dumps(config))
    with LLM(model=str(folder), dtype="float32") as llm:
        (made,) = llm.generate([PROMPT], use_tqdm=False)
    assert list(made.outputs[0].token_ids) == expected
    assert "ignoring num_beams=2, no_repeat_ngram_size=40" in caplog.text
