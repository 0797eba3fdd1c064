"""A config.json that lies ends in one sentence of ours, before a weight is read and before memory is taken."""

from __future__ import annotations

import contextlib
import copy
import functools
import json

import pytest
import torch
import worker_families
import worker_wrappers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenonry.errors import ConfigError, ModelError
from tenonry_worker_torch.loading.load import load_model, look

MODELS = ("llama", "mixtral", "gemma3", "gpt2", "wrapper:gemma3", "wrapper:qwen2_vl")
BILLION = 10**9


@functools.cache
def saved(model):
    """config.json of a model as save_pretrained writes it."""
    from transformers import CONFIG_MAPPING

    if model.startswith("wrapper:"):
        config = worker_wrappers.config_of(model.removeprefix("wrapper:"))
    else:
        name, values = worker_families.FAMILIES[model]
        config = CONFIG_MAPPING[name](**values)
    config.architectures = ["SomeForCausalLM"]
    return json.loads(config.to_json_string(use_diff=False))


def write(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"never read")
    return str(folder)


LIES = [
    ({"num_hidden_layers": BILLION}, r"num_hidden_layers is 1000000000, .* from 1 to"),
    ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
    ({"num_hidden_layers": "three"}, "num_hidden_layers is 'three', which is no number"),
    ({"hidden_size": BILLION}, "hidden_size is 1000000000"),
    ({"intermediate_size": -5}, "intermediate_size is -5"),
    ({"vocab_size": 0}, "vocab_size|does not describe a model"),
    ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 4"),
    ({"layer_types": ["full_attention"]}, "layer_types names 1 layers, and the model has 3"),
    ({"layer_types": ["full_attention"] * 100_000}, "layer_types has 100000 entries"),
    ({"num_labels": BILLION}, "num_labels is 1000000000"),
    ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
    ({"architectures": 7, "num_hidden_layers": 0}, "num_hidden_layers is 0"),
    (
        {"rope_parameters": {"rope_type": "nope"}},
        r"rope_parameters\.rope_type is 'nope', which the installed transformers does not know",
    ),
    ({"hidden_act": "nope"}, "config.json: hidden_act is 'nope', which the installed"),
    ({"model_type": ["llama"]}, "is not known to the installed transformers"),
]


@pytest.mark.parametrize(("changed", "reason"), LIES, ids=[next(iter(lie)) for lie, _ in LIES])
def test_a_lie_is_named_before_anything_is_read(tmp_path, changed, reason):
    with pytest.raises(ModelError, match=reason) as caught:
        look(write(tmp_path, saved("llama") | changed), load_format="auto")
    assert "\n" not in str(caught.value)


def test_a_lie_about_the_text_part_of_a_wrapper_is_named_with_its_place(tmp_path):
    config = copy.deepcopy(saved("wrapper:gemma3"))
    config["text_config"]["num_hidden_layers"] = BILLION
    with pytest.raises(ModelError, match=r"text_config\.num_hidden_layers is 1000000000"):
        look(write(tmp_path, config), load_format="dummy")


def test_the_release_that_knows_a_type_is_named_when_the_config_says(tmp_path):
    config = {"model_type": "fancy9", "transformers_version": "99.1.0.dev0"}
    with pytest.raises(
        ModelError, match=r"'fancy9' is not known .*pip install 'transformers>=99\.1\.0'"
    ):
        look(write(tmp_path, config), load_format="dummy")
    with pytest.raises(ModelError, match="look for a release that knows it"):
        look(write(tmp_path, config | {"transformers_version": "4.0.0"}), load_format="dummy")


def test_code_in_the_folder_is_named_and_never_run(tmp_path):
    (tmp_path / "modeling_fancy.py").write_text("raise SystemExit('this ran')")
    auto_map = {
        "AutoConfig": "modeling_fancy.Config",
        "AutoModelForCausalLM": "modeling_fancy.Model",
    }
    config = {"model_type": "fancy9", "auto_map": auto_map}
    with pytest.raises(ModelError, match=r"modeling_fancy\.Model.*never run"):
        look(write(tmp_path, config), load_format="dummy")


def test_a_known_type_ignores_the_code_beside_it(tmp_path):
    (tmp_path / "modeling_fancy.py").write_text("raise SystemExit('this ran')")
    auto_map = {
        "AutoConfig": "modeling_fancy.Config",
        "AutoModelForCausalLM": "modeling_fancy.Model",
    }
    found = look(write(tmp_path, saved("llama") | {"auto_map": auto_map}), load_format="dummy")
    assert type(found.whole).__name__ == "LlamaForCausalLM"


VALUES = st.one_of(
    st.none(), st.booleans(), st.sampled_from([-1, 0, 1, 2, 3, 5, 7, 64, BILLION, 2**63, -(10**30), 10**30]),
    st.sampled_from([0.5, -1.0, 1e30]), st.text(max_size=4), st.lists(st.integers(-2, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(-1, 3), max_size=2),
)  # fmt: skip


@st.composite
def lies(draw):
    """A saved configuration, one to three of whose values, nested ones too, were changed or taken away."""
    config = copy.deepcopy(saved(draw(st.sampled_from(MODELS))))
    for _ in range(draw(st.integers(1, 3))):
        place = config
        nested = [key for key, value in place.items() if isinstance(value, dict) and value]
        if nested and draw(st.booleans()):
            place = place[draw(st.sampled_from(nested))]
        if not place:
            continue
        key = draw(st.sampled_from(sorted(place)))
        if draw(st.integers(0, 4)) == 0:
            del place[key]
        else:
            place[key] = draw(VALUES)
    return config


@pytest.mark.filterwarnings("ignore")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(config=lies())
@pytest.mark.slow
def test_any_lie_is_refused_in_our_words_or_builds(tmp_path, config):
    """A model that was built also runs with random weights, or is rejected."""
    folder = write(tmp_path, config)
    with contextlib.suppress(ModelError, ConfigError):
        found = look(folder, load_format="dummy")
        if sum(weight.numel() for weight in found.whole.parameters()) > 1 << 20:
            return
        options = {"load_format": "dummy", "dtype": "float32", "device": torch.device("cpu")}
        load_model(folder, seed=0, found=found, **options)
