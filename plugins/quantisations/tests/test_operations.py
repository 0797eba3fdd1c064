"""Other engine operations with quantised weights: several ranks, sleep, adapters, other workers."""

from __future__ import annotations

import logging

import pytest
from quantised_answers import PROMPT, answers
from quantised_models import GROUP, model_folder, write_plainly

from tenonry import LLM, SamplingParams
from tenonry.errors import ConfigError, TenonryError

pytestmark = pytest.mark.slow  # whole models

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
GPTQ = {"bits": 4, "group_size": GROUP, "desc_act": False}


@pytest.mark.nightly
@pytest.mark.usefixtures("forked_children")
def test_ranks_quantise_their_pieces_at_load(tmp_path):
    model_folder(tmp_path)
    wanted = answers(tmp_path, quantization="int8")[0]
    found = answers(tmp_path, quantization="int8", tensor_parallel_size=2)[0]
    assert float((found - wanted).norm() / wanted.norm()) < 0.03


@pytest.mark.usefixtures("forked_children")
@pytest.mark.nightly
def test_ranks_dequantise_checkpoints(tmp_path):
    model_folder(tmp_path)
    write_plainly(tmp_path, "gptq", GPTQ)
    wanted = answers(tmp_path)[0]
    found = answers(tmp_path, tensor_parallel_size=2)[0]
    assert float((found - wanted).norm() / wanted.norm()) < 0.03


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.slow
def test_weights_that_were_dropped_are_quantised_again(stored, tmp_path):
    model_folder(tmp_path)
    settings = {} if stored else {"quantization": "int8"}
    if stored:
        write_plainly(tmp_path, "gptq", GPTQ)
    with LLM(
        model=str(tmp_path), io_processor="none", worker="torch", dtype="float32", **settings
    ) as llm:
        made = []
        for level in (1, 2, 2):
            (output,) = llm.generate([{"prompt_token_ids": PROMPT}], GREEDY, use_tqdm=False)
            made.append(output.outputs[0].token_ids)
            llm.sleep(level)
            llm.wake_up()
    assert made[0] == made[1] == made[2]


def test_weights_are_not_replaced(tmp_path):
    model_folder(tmp_path)
    with LLM(model=str(tmp_path), io_processor="none", worker="torch", quantization="int8") as llm:
        with pytest.raises(TenonryError, match="since they are quantised"):
            llm.update_weights(str(tmp_path))
        with pytest.raises(TenonryError, match="since they are quantised"):
            llm.save_sharded_state(str(tmp_path / "saved"))
        llm.generate([{"prompt_token_ids": PROMPT}], GREEDY, use_tqdm=False)


@pytest.mark.parametrize("worker", ["transformers", "pooling"])
def test_other_workers_refuse_the_setting(worker, tmp_path):
    model_folder(tmp_path)
    with pytest.raises(ConfigError, match=f"quantization=int8: worker '{worker}'"):
        LLM(model=str(tmp_path), io_processor="none", worker=worker, quantization="int8")


def test_the_worker_that_is_chosen_by_itself_quantises(tmp_path, caplog):
    model_folder(tmp_path)
    with (
        caplog.at_level(logging.INFO),
        LLM(model=str(tmp_path), io_processor="none", quantization="int8"),
    ):
        pass
    assert "Quantisation int8: 9 matrices" in caplog.text
