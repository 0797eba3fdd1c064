"""Models with wrong answers in a packed batch are rejected by name, before their weights load."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
import worker_families
import worker_tools

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, ModelError
from tenonry_worker_torch.loading.load import load_model, look
from tenonry_worker_torch.loading.refusals import _layer_type_reasons, refuse_unsupported
from tenonry_worker_torch.worker import TorchWorker

SMALL = worker_families.SMALL
TINY = {"hidden_size": 32, "vocab_size": 96}
NO_INTERFACE = "attention interface"
MIXERS = {
    "minimax": (
        SMALL | {"layer_types": ["linear_attention", "full_attention", "full_attention"]},
        "MiniMax.*linear_attention",
    ),
    "rwkv": (TINY | {"num_hidden_layers": 2, "attention_hidden_size": 32}, "Rwkv"),
    "recurrent_gemma": (
        SMALL | {"head_dim": 16, "lru_width": 64, "block_types": ["recurrent", "attention"]},
        "RecurrentGemma",
    ),
    "bloom": (TINY | {"n_layer": 2, "n_head": 4}, f"Bloom.*{NO_INTERFACE}"),
    "falcon": (
        TINY | {"num_hidden_layers": 2, "num_attention_heads": 4},
        f"Falcon.*{NO_INTERFACE}",
    ),
    "bart": (
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "vocab_size": 96,
        },
        "encoder-decoder",
    ),
    "t5": (
        {"d_model": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 96},
        "encoder-decoder|no causal language model",
    ),
}


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.integration
def test_a_model_that_mixes_tokens_without_attention_is_refused_before_loading(name, tmp_path):
    """The folder has no weights at all, so any error precedes the search for them."""
    from transformers import CONFIG_MAPPING

    values, reason = MIXERS[name]
    config = CONFIG_MAPPING[name](**values)
    config.architectures = [f"{type(config).__name__.removesuffix('Config')}ForCausalLM"]
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(ModelError, match=reason):
        load_model(
            str(tmp_path), load_format="auto", dtype="auto", device=torch.device("cpu"), seed=0
        )


@pytest.mark.parametrize("kind", ["indexed_attention", "deepseek_sparse_attention"])
def test_layers_with_an_indexer_are_known_by_both_names(kind):
    """The second is the name in transformers 5.17."""
    config = SimpleNamespace(layer_types=[kind])
    assert not list(_layer_type_reasons(config, ()))
    config.layer_types.append("heavily_compressed_attention")
    (reason,) = _layer_type_reasons(config, ())
    assert reason.startswith("layers of type heavily_compressed_attention have no KV group")


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"worker": "torch"}, "; --worker transformers runs what `generate` of transformers can$"),
        ({"worker": "torch", "tensor_parallel_size": 2}, "transformers can, with tensor_parallel_size=1"),
        ({"worker": "auto"}, "block-table KV cache$"),  # which asks the next one itself
    ],
)  # fmt: skip
def test_a_refusal_names_the_worker_that_may_run_the_model(tmp_path, settings, remedy):
    config = {"model_type": "falcon", "architectures": ["FalconForCausalLM"]}
    values = config | TINY | {"num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(values))
    chosen = EngineConfig(model=str(tmp_path), device="cpu", load_format="dummy", **settings)
    context = worker_tools.context(tmp_path)
    context.config = chosen
    with pytest.raises(ModelError, match=f"FalconForCausalLM cannot run .*{remedy}"):
        TorchWorker(context).load()


def test_a_hidden_convolution_is_found_by_its_class(tmp_path):
    from transformers import LlamaForCausalLM

    from tenonry_worker_torch.loading.refusals import refuse_unsupported

    model = worker_families.build("llama")
    assert isinstance(model, LlamaForCausalLM)
    model.model.layers[1].mlp.mix = torch.nn.Conv1d(4, 4, 3)
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.mix is a convolution"):
        refuse_unsupported(model, "MyForCausalLM")


def test_a_backend_that_does_not_know_sinks_is_refused_by_the_name_of_the_model(monkeypatch):
    monkeypatch.setattr(worker_tools.BACKENDS["sdpa"], "features", frozenset({"chunk"}))
    model = worker_families.build("gpt_oss")
    refuse_unsupported(model, "GptOssForCausalLM")
    with pytest.raises(
        ConfigError,
        match=r"'sdpa' cannot run GptOssForCausalLM: layer model\.layers\.0\.self_attn needs attention sinks",
    ):
        worker_tools.loaded(model, backend="sdpa")


def test_an_argument_of_attention_that_is_not_known_is_refused_by_its_name():
    model = worker_families.build("llama")
    attention = model.model.layers[1].self_attn
    forward = attention.forward
    attention.forward = lambda *args, **named: forward(*args, **named, slopes=torch.ones(4))
    with pytest.raises(
        ModelError, match=r"LlamaForCausalLM cannot run .*: LlamaAttention passes 'slopes'"
    ):
        worker_tools.loaded(model)


class _Neighbour(torch.nn.Module):
    """Adds the previous token's state: the kind of mixing that no list of class names can foresee."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]


def mixing_llama():
    model = worker_families.build("llama")
    for layer in model.model.layers:
        layer.mlp = _Neighbour(layer.mlp)
    return model


@pytest.mark.parametrize("fuse", [True, False])
def test_the_self_check_refuses_a_model_whose_requests_would_disturb_each_other(fuse):
    with pytest.raises(
        ModelError, match=r"LlamaForCausalLM fails the self check.*--skip-model-check"
    ):
        worker_tools.loaded(mixing_llama(), fuse=fuse)


def test_the_self_check_can_be_skipped():
    assert worker_tools.loaded(mixing_llama(), skip_check=True).vocab_size == 96


def test_config_json_is_what_names_the_architecture(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["FancyForCausalLM"], "model_type": "fancy"})
    )
    with pytest.raises(ModelError, match="FancyForCausalLM"):
        load_model(
            str(tmp_path), load_format="dummy", dtype="auto", device=torch.device("cpu"), seed=0
        )


BIDIRECTIONAL = "image tokens see one another"
SEES = {
    "gemma3": None,
    "paligemma": f"PaliGemmaForConditionalGeneration.*PaliGemmaModel .*{BIDIRECTIONAL}",
    "qwen3_vl": None,
    "qwen3_vl_moe": None,
    "fuyu": "FuyuForCausalLM.*no `get_image_features`",
    "qwen2_vl": None,
    "qwen2_5_vl": None,
    "llava": None,
    "llava_next": None,
    "internvl": None,
    "idefics3": None,
    "smolvlm": None,
    "mistral3": None,
    "llava with a tower of pixtral": None,
}


@pytest.mark.parametrize("family", SEES)
@pytest.mark.slow
@pytest.mark.nightly_after(5)
def test_what_a_model_does_with_images_is_looked_at_before_its_weights(family, tmp_path):
    """None: its code shows no more than reading embeddings; the self check at the start decides."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    name, _, tower = family.partition(" with a tower of ")
    config = CONFIG_MAPPING[name](**({"vision_config": {"model_type": tower}} if tower else {}))
    text = config.get_text_config()
    for name, value in SMALL.items():
        if hasattr(text, name):
            setattr(text, name, value)
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[: text.num_hidden_layers]
    config.architectures = [MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)].__name__]
    config.save_pretrained(tmp_path)
    if SEES[family] is None:
        assert look(str(tmp_path), load_format="dummy", towers=True).architecture
        return
    with pytest.raises(ModelError, match=f"max_images: {SEES[family]}.*max_images=0"):
        look(str(tmp_path), load_format="dummy", towers=True)
