"""Model configurations through `models check`: the verdict on each is correct.

The sample is our own. `TENONRY_PUBLIC_CONFIGS` may name a folder of folders with a published config.json each: none may
end in a traceback, and every rejection names its reason.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tenonry.config import EngineConfig
from tenonry.errors import TenonryError
from tenonry_models.check import check

GIVEN = os.environ.get("TENONRY_PUBLIC_CONFIGS")
SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "tie_word_embeddings": False,
    "dtype": "float32",
}  # fmt: skip
FAMILIES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM", "phi3": "Phi3ForCausalLM", "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM",
    "olmo": "OlmoForCausalLM", "olmo2": "Olmo2ForCausalLM", "granite": "GraniteForCausalLM",
    "cohere": "CohereForCausalLM", "stablelm": "StableLmForCausalLM", "starcoder2": "Starcoder2ForCausalLM",
    "glm": "GlmForCausalLM", "smollm3": "SmolLM3ForCausalLM", "nemotron": "NemotronForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM", "seed_oss": "SeedOssForCausalLM", "exaone4": "Exaone4ForCausalLM",
    "helium": "HeliumForCausalLM",
}  # fmt: skip
GROUP = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}}
READ = {
    "gptq": {"bits": 4, "group_size": 8},
    "gptq_v2": {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"},
    "awq": {"bits": 4, "group_size": 8}, "fp8": {"weight_block_size": [16, 16]},
    "compressed-tensors": {"config_groups": {"group_0": GROUP}, "format": "int-quantized"},
    "modelopt": {"quant_algo": "FP8"},
}  # fmt: skip
NOT_READ = (
    "mxfp4", "bitsandbytes", "hqq", "torchao", "quark", "aqlm", "eetq", "fbgemm_fp8", "higgs", "vptq", "spqr", "bitnet",
    "auto-round", "quanto",
)  # fmt: skip


def write(folder: Path, **changes) -> Path:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SMALL, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def judged(folder: Path, **settings):
    config = EngineConfig(
        model=str(folder), device="cpu", worker="torch", skip_tokenizer_init=True, **settings
    )
    return check(config, memory=10**9)


@pytest.mark.nightly_after(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_that_is_servable_says_so_and_starts(family, tmp_path):
    from transformers import CONFIG_MAPPING

    from tenonry import LLM, SamplingParams

    if family not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no type {family}")
    folder = write(tmp_path, model_type=family, architectures=[FAMILIES[family]], pad_token_id=0)
    report = judged(folder)
    assert (report.servable, report.reason) == (True, "")
    with LLM(
        model=str(folder), device="cpu", worker="torch", load_format="dummy", io_processor="none"
    ) as llm:
        params = SamplingParams(max_tokens=2, ignore_eos=True, detokenize=False)
        (output,) = llm.generate([{"prompt_token_ids": [3, 4, 5]}], params)
    assert len(output.outputs[0].token_ids) == 2


@pytest.mark.parametrize("name", READ)
def test_a_format_that_is_read_is_servable_without_its_weights(name, tmp_path):
    folder = write(tmp_path, quantization_config={"quant_method": name, **READ[name]})
    report = judged(folder)
    assert (report.servable, report.reason) == (True, "")
    assert len(report.facts.features["quantization"]) == 1


@pytest.mark.parametrize("name", NOT_READ)
def test_a_format_that_is_not_read_is_named(name, tmp_path):
    folder = write(tmp_path, quantization_config={"quant_method": name, "bits": 4})
    report = judged(folder)
    assert not report.servable
    assert (
        f"quantised ({name}), and none of the installed quantisations reads that" in report.reason
    )


@pytest.mark.skipif(
    GIVEN is None, reason="TENONRY_PUBLIC_CONFIGS names no folder of configurations"
)
@pytest.mark.parametrize("file", sorted(Path(GIVEN or ".").glob("**/config.json")) if GIVEN else [])
def test_a_published_configuration_is_judged_in_words(file):
    try:
        report = judged(file.parent)
        words = report.reason
        is_servable = report.servable
    except TenonryError as error:
        words = str(error)
        is_servable = False
    assert is_servable or words
