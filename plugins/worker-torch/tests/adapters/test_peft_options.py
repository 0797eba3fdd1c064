"""Adapters saved by peft itself with less common options: equal tokens, or an error naming option or tensor."""

from __future__ import annotations

import copy

import lora_tools
import pytest
import worker_driver
import worker_families
import worker_tools

from tenonry.errors import ModelError
from tenonry_worker_torch.adapters.folder import AdapterFolder
from tenonry_worker_torch.adapters.targets import LoraTargets

PROMPT = worker_tools.prompts((9,))[0]


@pytest.fixture(scope="module")
def module():
    return worker_families.build("llama")


@pytest.mark.parametrize(
    "options",
    [
        {"use_rslora": True, "lora_alpha": 3, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 9}},
        {"use_rslora": True, "rank_pattern": {"model.layers.1.self_attn.q_proj": 7}},
        {"layers_to_transform": [1], "target_modules": ["v_proj", "o_proj", "gate_proj"], "lora_alpha": 64},
        {"exclude_modules": ["up_proj"], "lora_dropout": 0.5, "lora_alpha": 32},
        {"fan_in_fan_out": True, "target_modules": ["down_proj"]},  # set back by peft for such layers
    ],
    ids=str,
)  # fmt: skip
def test_the_tokens_are_those_of_peft(module, tmp_path, options):
    peft = lora_tools.Peft(module, tmp_path, ranks=(4,), **options)
    runner = lora_tools.runner(copy.deepcopy(module), max_loras=1)
    runner.model.adapters.add("a4", peft.path("a4"))
    request = worker_driver.Request(
        1, PROMPT, max_tokens=lora_tools.NUM_TOKENS, adapter=lora_tools.loaded(runner.model.adapters, "a4")
    )  # fmt: skip
    worker_driver.Driver(runner.answer, max_num_seqs=12, num_blocks=160, block_size=4).run(
        [request]
    )
    assert request.output == peft.generate("a4", PROMPT)
    assert request.output != peft.generate(None, PROMPT)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"use_dora": True}, "use_dora=True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save=['lm_head']"),
        ({"bias": "lora_only"}, "bias='lora_only'"),
        ({"lora_bias": True}, "lora_bias=True"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"target_parameters": ["mlp.up_proj.weight"]}, "target_parameters=['mlp.up_proj.weight']"),
        ({"target_modules": ["q_proj", "lm_head"]}, "base_model.model.lm_head."),
        ({"target_modules": ["embed_tokens"]}, "base_model.model.model.embed_tokens."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_served_is_named(module, tmp_path, options, named):
    peft = lora_tools.Peft(module, tmp_path, ranks=(4,), **options)
    with pytest.raises(ModelError) as raised:
        AdapterFolder(peft.path("a4"), LoraTargets(copy.deepcopy(module), module), 16)
    assert named in str(raised.value)
