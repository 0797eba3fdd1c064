"""Rejected checkpoints and settings, each named, with an alternative."""

from __future__ import annotations

import json

import pytest
import torch
from quantised_models import GROUP, compress, model_folder, write_floats, write_plainly
from safetensors.torch import load_file, save_file

from tenonry import LLM
from tenonry.errors import ConfigError, ModelError, TenonryError
from tenonry_quantisations.awq import Awq
from tenonry_quantisations.compressed_tensors import CompressedTensors
from tenonry_quantisations.fp8 import Fp8
from tenonry_quantisations.gptq import Gptq

pytestmark = pytest.mark.slow  # whole models

NAME = "model.layers.1.mlp.up_proj"
GPTQ = {"bits": 4, "group_size": GROUP, "desc_act": False}
FLOATS_8 = {"num_bits": 8, "type": "float", "symmetric": True}
WEIGHTS = {
    "num_bits": 4,
    "type": "int",
    "symmetric": True,
    "strategy": "group",
    "group_size": GROUP,
}


def refused(folder, error=ModelError, **settings):
    with (
        pytest.raises(TenonryError) as raised,
        LLM(model=str(folder), io_processor="none", worker="torch", **settings),
    ):
        pass
    assert isinstance(raised.value, error)
    return str(raised.value)


def change(folder, **tensors):
    """Replace tensors of one module; None takes one away."""
    file = folder / "model.safetensors"
    stored = load_file(file)
    for ending, tensor in tensors.items():
        stored.pop(f"{NAME}.{ending}", None)
        if tensor is not None:
            stored[f"{NAME}.{ending}"] = tensor
    save_file(stored, file)


def set_config(folder, config):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": config}))


@pytest.fixture
def gptq(tmp_path):
    model_folder(tmp_path)
    write_plainly(tmp_path, "gptq", GPTQ)
    return tmp_path


def test_missing_scales_are_named(gptq):
    change(gptq, scales=None)
    assert f"{NAME}.scales is in no file" in refused(gptq)


def test_wrong_shapes_are_named(gptq):
    change(gptq, qzeros=torch.zeros(1, 12, dtype=torch.int32))
    said = refused(gptq)
    assert f"{NAME}.qzeros is [1, 12]" in said
    assert "[2, 12]" in said


def test_a_matrix_of_another_size_than_config_json_says_is_named(gptq):
    parts = {
        "qweight": torch.zeros(16, 96, dtype=torch.int32),
        "qzeros": torch.zeros(4, 12, dtype=torch.int32),
        "scales": torch.ones(4, 96),
        "g_idx": torch.arange(128, dtype=torch.int32) // GROUP,
    }
    change(gptq, **parts)
    said = refused(gptq)
    assert f"{NAME}.weight" in said
    assert "[96, 128]" in said
    assert "[96, 64]" in said


def test_a_wrong_group_size_is_refused_by_module(gptq):
    set_config(gptq, {"quant_method": "gptq", **GPTQ, "group_size": 40})
    assert "inputs are no multiple of group_size=40" in refused(gptq)


def test_groups_that_do_not_exist_are_named(gptq):
    change(gptq, g_idx=torch.full((64,), 7, dtype=torch.int32))
    assert f"{NAME}.g_idx has values from 7 to 7" in refused(gptq)


def test_scales_that_are_missing_beside_a_matrix_of_bytes_are_named(tmp_path):
    model_folder(tmp_path)
    compress(
        tmp_path,
        {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
        {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
    )
    change(tmp_path, weight_scale=None)
    said = refused(tmp_path)
    assert f"tensor {NAME}.weight is I8" in said
    assert "weight_scale" in said


def test_a_packed_matrix_that_is_not_of_its_own_shape_is_named(tmp_path):
    model_folder(tmp_path)
    compress(tmp_path, WEIGHTS)
    change(tmp_path, weight_shape=torch.tensor([96, 32]))
    assert f"{NAME}.weight_shape is [96, 32]" in refused(tmp_path)


def test_a_format_that_is_not_known_is_refused_with_those_that_are(gptq):
    set_config(gptq, {"quant_method": "bitsandbytes"})
    said = refused(gptq)
    assert "is quantised (bitsandbytes)" in said
    assert "awq, compressed-tensors, fp8, gguf, gptq, int4, int8" in said


def test_floats_that_config_json_calls_quantised_are_refused(tmp_path):
    model_folder(tmp_path)
    set_config(tmp_path, {"quant_method": "gptq", **GPTQ})
    assert "no file holds tensors that end in one of qweight" in refused(tmp_path)


def test_a_setting_for_another_format_is_refused(gptq):
    assert "is quantised already (gptq)" in refused(gptq, ConfigError, quantization="awq")
    assert "is quantised already (gptq)" in refused(gptq, ConfigError, quantization="int8")


def test_random_weights_have_no_format(gptq):
    assert "use load_format=auto" in refused(gptq, ConfigError, load_format="dummy")


def test_a_format_of_checkpoints_makes_nothing_at_load(tmp_path):
    model_folder(tmp_path)
    assert "reads checkpoints only" in refused(tmp_path, ConfigError, quantization="gptq")


def test_layers_that_are_not_fused_are_not_quantised_at_load(tmp_path):
    model_folder(tmp_path)
    said = refused(tmp_path, ConfigError, quantization="int8", enforce_eager=True)
    assert "leave out --enforce-eager" in said


def test_half_precision_is_refused_at_load(tmp_path):
    model_folder(tmp_path)
    said = refused(tmp_path, ConfigError, quantization="int8", dtype="float16")
    assert "float32 or bfloat16" in said


EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
STATE = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "layer_types": ["full_attention", "linear_attention"],
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_experts": 0,
    "mlp_only_layers": [0, 1],
}
OWN_CODE = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 32, "n_head": 2}


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (EXPERTS, "layer 0 of Qwen3MoeForCausalLM is a Qwen3MoeSparseMoeBlock"),
        (STATE, "layer 1 of Qwen3NextForCausalLM keeps state"),
        (OWN_CODE, "GPT2LMHeadModel runs its own code"),
    ],
)
def test_models_that_are_not_quantised_at_load_are_named(shape, said, tmp_path):
    common = {
        "dtype": "float32",
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(common | shape))
    message = refused(tmp_path, quantization="int8", load_format="dummy")
    assert said in message
    assert "leave --quantization out" in message


@pytest.mark.parametrize(
    ("kind", "config", "said"),
    [
        (Gptq, {"bits": 3}, "bits=3 of gptq is not known"),
        (Gptq, {"checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
        (Gptq, {"group_size": 0}, "group_size=0"),
        (Gptq, {"dynamic": {"-:x": {}}}, "dynamic of gptq"),
        (Awq, {"bits": 8}, "bits=8 of awq"),
        (Awq, {"version": "gemv"}, "version='gemv'"),
        (CompressedTensors, {}, "config_groups"),
        (CompressedTensors, {"config_groups": {}}, "config_groups"),
        (CompressedTensors, {"format": "float-quantized"}, "format='float-quantized'"),
        (CompressedTensors, {"config_groups": {"g": {"weights": None}}}, "config_groups.g"),
        (
            CompressedTensors,
            {"config_groups": {"g": {"weights": {**WEIGHTS, "type": "float"}}}},
            "type='float'",
        ),
        (
            CompressedTensors,
            {"config_groups": {"g": {"weights": {**WEIGHTS, "num_bits": 2}}}},
            "num_bits=2",
        ),
        (
            CompressedTensors,
            {"config_groups": {"g": {"weights": {**WEIGHTS, "strategy": "block"}}}},
            "strategy='block'",
        ),
        (
            CompressedTensors,
            {
                "config_groups": {
                    "g": {"weights": WEIGHTS},
                    "h": {"weights": {**WEIGHTS, "num_bits": 8}},
                }
            },
            "2 kinds of weights",
        ),
        (
            CompressedTensors,
            {
                "config_groups": {"g": {"weights": WEIGHTS}},
                "sparsity_config": {"format": "sparse-24-bitmask"},
            },
            "sparsity_config",
        ),
    ],
)
def test_what_a_format_asks_for_and_is_not_read_is_refused(kind, config, said):
    with pytest.raises(ModelError) as raised:
        kind(config)
    assert said in str(raised.value)


@pytest.fixture
def floats_8(tmp_path):
    model_folder(tmp_path)
    write_floats(tmp_path, [32, 16])
    return tmp_path


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"weight_scale_inv": None}, f"tensor {NAME}.weight is F8_E4M3"),
        ({"weight": None}, f"{NAME}.weight is in no file"),
        ({"weight_scale_inv": torch.ones(3, 3)}, f"{NAME}.weight_scale_inv is [3, 3]"),
        (
            {"weight_scale_inv": torch.ones(3, 4, dtype=torch.uint8)},
            f"{NAME}.weight_scale_inv is U8",
        ),
        (
            {"weight": torch.zeros(96, 64).to(torch.float8_e5m2)},
            f"{NAME}.weight is F8_E5M2, not F8_E4M3",
        ),
        ({"weight_scale_inv": torch.full((3, 4), torch.inf)}, "holds numbers that are not finite"),
    ],
)
def test_floats_of_8_bits_that_cannot_be_read_are_named(tensors, words, floats_8):
    change(floats_8, **tensors)
    assert words in refused(floats_8)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt='e5m2'"),
        ({"quant_method": "fp8", "scale_fmt": "ue8m0"}, "scale_fmt='ue8m0'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "blocks of '[128]'"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "blocks of '[0, 128]'"),
        ({"config_groups": {"g": {"weights": FLOATS_8 | {"strategy": "group"}}}}, "'group'"),
        (
            {
                "config_groups": {
                    "g": {"weights": FLOATS_8 | {"strategy": "tensor"}},
                    "h": {"weights": FLOATS_8 | {"strategy": "channel"}},
                }
            },
            "several kinds of weights, strategy 'tensor' and 'channel'",
        ),
    ],
)
def test_what_is_said_of_floats_of_8_bits_and_is_not_read_is_named(config, words):
    assert Fp8.reads(config)
    with pytest.raises(ModelError) as raised:
        Fp8(config)
    assert words in str(raised.value)


def test_other_formats_of_modelopt_are_refused_by_name(tmp_path):
    model_folder(tmp_path)
    said = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "NVFP4", "group_size": 16},
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    assert "is quantised (modelopt NVFP4), and none of the installed" in refused(tmp_path)
    (tmp_path / "hf_quant_config.json").unlink()
    groups = {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}
    set_config(
        tmp_path, {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": groups}
    )
    assert "is quantised (modelopt NVFP4), and none of the installed" in refused(tmp_path)


def test_a_text_model_may_declare_it_by_itself(tmp_path):
    """In a multimodal model, the entry is in text_config."""
    from pathlib import Path

    from tenonry_torch_base.folder import declared_quantisation

    said = {"quant_method": "awq"}
    assert (
        declared_quantisation(Path(tmp_path), {"text_config": {"quantization_config": said}})
        == said
    )
    assert declared_quantisation(Path(tmp_path), {"quantization_config": said}) == said
    assert declared_quantisation(Path(tmp_path), {"text_config": {}}) is None
