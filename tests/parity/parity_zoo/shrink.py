"""Makes a configuration class of transformers tiny: sizes by the names of its fields, whatever the family.

A field is set only if its class declares it with a value of its own, so that derived values stay derived. Lists with
one entry per layer are shortened to a few layers that still hold every combination of kinds.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

VOCAB_SIZE = 128
MAX_LENGTH = 256
MAX_LAYERS = 6
WINDOW = 8
FIRST_PLAIN_TOKEN = 16  # tokens below have a meaning in some family: begin, end, image, audio

# The first pattern that matches a whole name gives its size; a number is an upper bound, never a rise.
SIZES: list[tuple[str, int]] = [
    (r"vocab_size_per_layer_input|(\w+_)?vocab_size|text_vocab_size", VOCAB_SIZE),
    (r"hidden_size_per_layer_input", 16),
    (r"hidden_size|d_model|n_embd|embedding_dim|emb_dim|word_embed_proj_dim|attention_hidden_size|lru_width", 64),
    (r"embed_dim|adapter_(in|out)_dim|adapter_input_size|out_hidden_size|text_hidden_size|projection_dim", 64),
    (r"embedding_size|input_embedding_size|(backbone|router|projector|moe)_hidden_size", 64),
    (r"intermediate_multiple_size|expansion_ratio|expand|mamba_expand", 4),
    (r"(\w+_)?intermediate_size(_mlp)?|n_inner|d_inner|dff|dim_ff|feed_forward_size", 96),
    (r"ffn_dim|(en|de)coder_ffn_dim|ffn_hidden_size|expert_ffn_hidden_size", 96),
    (r"num_key_value_heads|num_kv_heads|swa_num_key_value_heads|num_query_groups|multi_query_group_num", 2),
    (r"(swa_)?num_attention_heads|n_heads?|num_heads|attention_heads|(en|de)coder_attention_heads", 4),
    (r"num_(en|de)coder_attention_heads|encoder_attention_heads|linear_num_value_heads|linear_num_heads", 4),
    (r"index_n_heads", 16),  # with few, many keys score exactly 0, and ties among them are decided by shape
    (r"linear_num_key_heads", 2),
    (r"(mamba_)?n_groups|mamba_ngroups", 2),
    (r"mamba_n(um)?_heads|n_mamba_heads", 8),
    (r"mamba_d_ssm", 128),
    (r"head_dim|attention_head_size|dim_head|d_head|d_kv|kv_channels|index_head_dim|swa_head_dim|v_head_dim", 16),
    (r"mamba_d_head|mamba_head_dim|mamba_headdim|linear_(key_|value_)?head_dim|qk_nope_head_dim", 16),
    (r"qk_rope_head_dim|rotary_dim", 8),
    (r"q_lora_rank|o_lora_rank", 32),
    (r"(\w+_)?rank|hc_lowrank|time_step_rank", 16),
    (r"mamba_d_state|state_size|ssm_state_size", 8),
    (r"(\w+_)?window(_size|_len)?|local_attention|(\w+_)?attention_chunk_size|floor_scale|keep_window_size", WINDOW),
    (r"mamba_chunk_size|chunk_size|block_size|(local|lsh)_attn_chunk_length|index_block_size", WINDOW),
    (r"index_topk", 6),
    (r"index_topk_blocks", 2),
    (r"num_experts_per_tok(en)?|moe_k|moe_topk|moe_num_active\w+", 2),
    (r"num_(local_|routed_)?experts|n_routed_experts|moe_num_experts|zero_expert_num", 8),
    (r"n_group|num_expert_group", 2),
    (r"topk_group", 1),
    (r"n_shared_experts|num_shared_experts|moe_num_shared_experts", 1),
    (r"first_k_dense_replace|num_dense_layers", 1),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|model_max_length|context_length", MAX_LENGTH),
    (r"max_(source|target)_positions|original_max_position_embeddings|position_bias_max_distance", MAX_LENGTH),
    (r"relative_max_distance|rel_extent", MAX_LENGTH),
]  # fmt: skip
LAYERS = re.compile(
    r"num_hidden_layers|num_layers|n_layers?|(en|de)coder_layers|num_(en|de)coder_layers|num_blocks|"
    r"num_layers_per_stack|depth"
)
TOKEN = re.compile(
    r"\w*token(_id|_index|_ids)|bot?s_index|eo[sd]_index|pad_index|unk_index|mask_index"
)
MROPE_SECTION = [2, 3, 3]  # the halves of a head of 16
OFF_BY_DEFAULT: dict[str, Any] = {
    "sliding_window": WINDOW
}  # what some families declare and leave out
SPECIAL_TOKENS = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}


def shrunk(config_class: type, overrides: dict[str, Any]) -> Any:
    """A tiny configuration of the class. `overrides`: values that win, a dictionary for a nested configuration."""
    default = _default(config_class, overrides)
    values = _sizes(config_class, default, overrides)
    nested = {}
    for name in config_class.sub_configs:
        given = overrides.get(name, {})
        if given is None:
            nested[name] = None
        elif (part := getattr(default, name, None)) is not None:
            nested[name] = shrunk(type(part), given)
    return config_class(**(values | _plain(overrides, nested) | nested))


def _default(config_class: type, overrides: dict[str, Any]) -> Any:
    try:
        return config_class()
    except Exception:  # some defaults contradict one another; then the overrides must not
        return config_class(**_plain(overrides, config_class.sub_configs))


def _plain(overrides: dict[str, Any], nested: Any) -> dict[str, Any]:
    return {name: value for name, value in overrides.items() if name not in nested}


def _sizes(config_class: type, default: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    declared = {field.name: field.default for field in dataclasses.fields(config_class)}
    given_values = default.to_dict()
    chosen = _chosen_layers(declared, given_values, overrides)
    values: dict[str, Any] = {}
    next_token = 3
    for name, given in declared.items():
        value = given_values.get(name, given)
        if name == "tie_word_embeddings":
            values[name] = False  # else a random model often repeats the token it was given
        if name in config_class.sub_configs or isinstance(value, bool):
            continue
        if TOKEN.fullmatch(name):
            if name in SPECIAL_TOKENS:
                values[name] = SPECIAL_TOKENS[name]
            elif isinstance(value, int) and value >= 0:
                values[name] = next_token
                next_token += 1
        elif chosen and LAYERS.fullmatch(name):
            values[name] = len(chosen)
        elif chosen and isinstance(value, list | tuple) and len(value) == _depth(given_values):
            values[name] = [value[index] for index in chosen]
        elif (
            isinstance(value, int) and isinstance(given, int) and (size := _size(name)) is not None
        ):
            values[name] = min(value, size)
        elif name in OFF_BY_DEFAULT:
            values[name] = OFF_BY_DEFAULT[name]
    rope = given_values.get("rope_parameters")
    if isinstance(rope, dict) and "mrope_section" in rope:
        values["rope_parameters"] = rope | {"mrope_section": MROPE_SECTION}
    if "kv_lora_rank" in declared and "num_key_value_heads" in values:
        values["num_key_value_heads"] = values[
            "num_attention_heads"
        ]  # latent attention has no groups
    return values


def _size(name: str) -> int | None:
    return next((size for pattern, size in SIZES if re.fullmatch(pattern, name)), None)


def _depth(values: dict[str, Any]) -> int:
    for name in ("num_hidden_layers", "num_layers", "n_layer", "decoder_layers", "num_blocks"):
        if isinstance(value := values.get(name), int):
            return value
    return 0


def _chosen_layers(
    declared: dict[str, Any], values: dict[str, Any], overrides: dict[str, Any]
) -> list[int]:
    """Remaining layers of the default: the first of every combination of kinds, and at least three."""
    depth = _depth(values)
    lists = [
        value
        for name in declared
        if isinstance(value := values.get(name), list | tuple) and len(value) == depth
    ]
    wanted = next((overrides[name] for name in overrides if LAYERS.fullmatch(name)), None)
    kept: dict[str, int] = {}
    for index in range(depth):
        kept.setdefault(str([each[index] for each in lists]), index)
    chosen = sorted(kept.values())[: wanted or MAX_LAYERS]
    for index in range(depth):
        if len(chosen) >= (wanted or min(3, depth)):
            break
        if index not in chosen:
            chosen.append(index)
    return sorted(chosen) if depth else [0, 1, 2]
