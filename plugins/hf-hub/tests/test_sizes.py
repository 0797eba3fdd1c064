"""Impossible sizes in config.json are rejected by key, value and bound."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.config import EngineConfig
from tenonry.errors import ModelError
from tenonry_hf_hub import check_sizes
from tenonry_hf_hub.hooks import tenonry_resolve_model

GOOD = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
    "layer_types": ["full_attention"] * 2, "max_position_embeddings": 128, "sliding_window": None,
    "time_step_limit": [0.0, float("inf")], "model_max_length": 10**30, "num_experts": None, "chunk_size": -1,
    "intermediate_size": [96, 96],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, which is not from 1 to 4096"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers is nan"),
        ({"hidden_size": -64}, "hidden_size is -64, which is not from 1"),
        ({"hidden_size": "64"}, "hidden_size is '64', which is no number"),
        ({"intermediate_size": [96, 10**9]}, "intermediate_size is 1000000000"),
        ({"num_experts": 10**6}, "num_experts is 1000000"),
        ({"num_labels": 10**9}, "num_labels is 1000000000"),
        ({"encoder_layers": 10**5}, "encoder_layers is 100000"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 4"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers, and the model has 2"),
        ({"vision_config": {"depth": 10**7}}, r"vision_config\.depth is 10000000"),
        ({"text_config": GOOD | {"hidden_size": 0}}, r"text_config\.hidden_size is 0"),
    ],
)  # fmt: skip
def test_a_size_out_of_bounds_is_named(changed, reason):
    check_sizes(GOOD, "config.json")
    with pytest.raises(ModelError, match=rf"config\.json: {reason}"):
        check_sizes(GOOD | changed, "config.json")


def test_objects_inside_objects_end_somewhere():
    config: dict[str, object] = {}
    for _ in range(200):
        config = {"text_config": config}
    with pytest.raises(ModelError, match="nested more than 8 deep"):
        check_sizes(config, "config.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(GOOD)), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), JSON))
def test_nothing_but_a_model_error_comes_out(config):
    said = ["config.json: "]
    try:
        check_sizes(config, "config.json")
    except ModelError as error:
        said = str(error).splitlines()
    assert len(said) == 1
    assert said[0].startswith("config.json: ")


KEYS = sorted([*GOOD, "rope_scaling", "rope_parameters", "rope_type", "factor", "text_config", "eos_token_id", "dtype",
               "architectures", "model_type", "auto_map"])  # fmt: skip
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("model")


@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING))
@pytest.mark.slow
def test_any_config_gives_facts_or_a_model_error(folder, config):
    named = {"architectures": ["SomeForCausalLM"], "vocab_size": 96} | config
    (folder / "config.json").write_text(json.dumps(named))
    asked = EngineConfig(model=str(folder), load_format="dummy", skip_tokenizer_init=True)
    try:
        info = tenonry_resolve_model(asked)
    except ModelError:
        return
    assert info.max_model_len > 0
    assert info.vocab_size > 0
