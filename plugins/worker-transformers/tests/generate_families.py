"""Tiny random models of very different families, with weights so large that greedy choices are never close calls."""

from __future__ import annotations

import atexit
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

VOCAB = 96
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SMALL = IDS | {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
GPT = IDS | {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "rotary_dim": 8,
}
STATE = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
}
SEQ2SEQ = IDS | {
    "vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128,
    "decoder_start_token_id": 2,
}  # fmt: skip
T5 = IDS | {
    "vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip

CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", IDS | {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon": ("falcon", SMALL),
    "gptj": ("gptj", GPT),
    "codegen": ("codegen", GPT),
    "mpt": (
        "mpt", IDS | {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128,
                      "use_cache": True},
    ),
    "openai-gpt": ("openai-gpt", GPT),
    "gpt_neo": (
        "gpt_neo",
        SMALL | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8,
                 "max_position_embeddings": 64},
    ),
    "gemma3": (
        "gemma3_text",
        SMALL | {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "mamba": (
        "mamba", IDS | {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    ),
    "rwkv": (
        "rwkv", IDS | {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32},
    ),
    "xlstm": (
        "xlstm", IDS | {"vocab_size": VOCAB, "hidden_size": 64, "embedding_dim": 64, "num_hidden_layers": 2,
                        "num_blocks": 2, "num_heads": 4, "qk_dim_factor": 1.0, "v_dim_factor": 1.0, "chunk_size": 8},
    ),
    "jamba": (
        "jamba", SMALL | {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2,
                          "num_experts_per_tok": 1, "mamba_d_state": 8, "use_mamba_kernels": False},
    ),
    "bamba": ("bamba", SMALL | STATE | {"num_hidden_layers": 3, "attn_layer_indices": [1]}),
    "qwen3_next": (
        "qwen3_next",
        SMALL | {
            "head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
            "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
        },
    ),
    # Its modules keep the state themselves.
    "recurrent_gemma": (
        "recurrent_gemma",
        SMALL | {"num_hidden_layers": 3, "lru_width": 32, "head_dim": 8, "attention_window_size": 8,
                 "block_types": ["recurrent", "recurrent", "attention"]},
    ),
    # With the seed, it draws the same hashes in every call.
    "reformer": (
        "reformer",
        IDS | {"vocab_size": VOCAB, "hidden_size": 32, "feed_forward_size": 48, "num_attention_heads": 4,
               "attention_head_size": 8, "attn_layers": ["local", "lsh"], "axial_pos_shape": [8, 16],
               "axial_pos_embds_dim": [16, 16], "max_position_embeddings": 128, "num_buckets": 4,
               "lsh_attn_chunk_length": 8, "local_attn_chunk_length": 8, "is_decoder": True, "hash_seed": 0},
    ),
    "bert": ("bert", SMALL | {"is_decoder": False}),
    # The tokens of a prompt see one another in both directions, those that follow do not.
    "gemma-prefix": ("gemma", SMALL | {"head_dim": 8, "use_bidirectional_attention": True}),
    # Its own call gives other logits for a prompt than `generate`.
    "xlnet": ("xlnet", IDS | {"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
}  # fmt: skip
TEXT_TO_TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("bart", SEQ2SEQ | {"forced_eos_token_id": 2}),
    "marian": ("marian", SEQ2SEQ | {"decoder_start_token_id": 0}),
    "pegasus": ("pegasus", SEQ2SEQ | {"decoder_start_token_id": 0}),
    "t5": ("t5", T5),
}  # fmt: skip
FAMILIES = CAUSAL | TEXT_TO_TEXT
# A prompt of one token continues the previous request, if the model had one.
FORGETFUL = {"recurrent_gemma"}
# Where no greedy choice is a close call.
SEEDS: dict[str, int] = {}
# What a hub's generation_config.json may hold.
GENERATION: dict[str, dict[str, Any]] = {
    "bart": {"no_repeat_ngram_size": 2, "forced_bos_token_id": 7, "min_length": 6},
    "marian": {"bad_words_ids": [[0]], "suppress_tokens": [5, 9]},
}


def build(family: str) -> Any:
    """A model of the family; every weight is random, norms and biases included."""
    import transformers

    name, values = FAMILIES[family]
    kind = (
        transformers.AutoModelForSeq2SeqLM
        if family in TEXT_TO_TEXT
        else transformers.AutoModelForCausalLM
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEEDS.get(family, 0))
        config = transformers.CONFIG_MAPPING[name](**values)
        model = kind.from_config(config, dtype=torch.float32)
        for key, weight in model.named_parameters():
            _fill(key, weight.data)
    model.generation_config.update(**GENERATION.get(family, {}))
    return model


def _fill(key: str, weight: torch.Tensor) -> None:
    if weight.dim() < 2:
        is_scale = float(weight.float().mean()) > 0.5
        weight.uniform_(-0.1, 0.1).add_(1.0 if is_scale else 0.0)
    elif any(part in key for part in ("embed", "wte", "wpe", "shared")):
        weight.normal_(0.0, 0.4)
    else:
        weight.normal_(0.0, 2.0 * weight.shape[-1] ** -0.5)


@functools.cache
def folder(family: str) -> str:
    """Folder of the saved model, laid out as on the hub; removed after the tests."""
    parent = tempfile.TemporaryDirectory(prefix=f"{family}-")
    atexit.register(parent.cleanup)
    build(family).save_pretrained(parent.name)
    return parent.name


def stored(family: str) -> Any:
    """The model as transformers loads it from the folder: some buffers are never stored."""
    import transformers

    kind = getattr(
        transformers,
        json.loads(Path(folder(family), "config.json").read_text())["architectures"][0],
    )
    return kind.from_pretrained(folder(family), dtype=torch.float32).eval()


def path(family: str) -> Path:
    """The folder as a path."""
    return Path(folder(family))
