"""Rejected adapter folders, one sentence each, before anything changes (issue 10, bad input)."""

from __future__ import annotations

import copy
import json
import shutil

import lora_tools
import pytest
import torch
import worker_families
from safetensors.torch import load_file, save_file

from tenonry.errors import ConfigError, ModelError
from tenonry_worker_torch.adapters.folder import AdapterFolder, digest_of, name_and_path
from tenonry_worker_torch.adapters.options import LoraOptions
from tenonry_worker_torch.adapters.targets import LoraTargets

Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def module():
    return worker_families.build("llama")


@pytest.fixture(scope="module")
def places(module):
    return LoraTargets(copy.deepcopy(module), module)


@pytest.fixture(scope="module")
def saved(module, tmp_path_factory):
    peft = lora_tools.Peft(module, tmp_path_factory.mktemp("adapters"), ranks=(4,))
    return peft.folder / "a4"


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "a")
    return tmp_path / "a"


def change(folder, **values):
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | values))


def change_tensors(folder, work):
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    work(tensors)
    save_file(tensors, file)


def refusal(folder, places, max_rank=16):
    with pytest.raises(ModelError) as raised:
        AdapterFolder(str(folder), places, max_rank).read()
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_a_good_one_is_read(folder, places):
    found = AdapterFolder(str(folder), places, 4)
    assert found.rank == 4
    down, up = found.read()["model.layers.0.self_attn.q_proj"]
    stored = load_file(folder / "adapter_model.safetensors")
    assert torch.equal(down, stored[f"{Q}.lora_A.weight"])
    scale = 8 / 4**0.5  # rank-stabilised
    torch.testing.assert_close(up.float(), stored[f"{Q}.lora_B.weight"] * scale)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"use_dora": True}, "use_dora=True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save=['lm_head']"),
        ({"bias": "all"}, "bias='all'"),
        ({"lora_bias": True}, "lora_bias=True"),
        ({"target_parameters": ["x"]}, "target_parameters=['x']"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices=[3]"),
        ({"layer_replication": [[0, 1]]}, "layer_replication=[[0, 1]]"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out=True"),
        ({"an_option_of_tomorrow": 1}, "an_option_of_tomorrow=1"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"task_type": "SEQ_CLS"}, "task_type='SEQ_CLS'"),
        ({"auto_mapping": {"base_model_class": "OtherModel"}}, "base_model_class='OtherModel'"),
        ({"r": 0}, "r=0"),
        ({"r": "4"}, "r='4'"),
        ({"lora_alpha": "x"}, "lora_alpha='x'"),
        ({"rank_pattern": {"(a+)+": 4}}, "rank_pattern has the regular expression '(a+)+'"),
        ({"r": 5}, "lora_A.weight is [4, 64], but the adapter's rank"),
    ],
)
def test_options_that_are_not_supported_are_named(folder, places, values, named):
    change(folder, **values)
    assert named in refusal(folder, places)


def test_a_rank_above_the_setting_says_what_to_type(folder, places):
    assert "rank 4, above max_lora_rank=2; start with --max-lora-rank 4" in refusal(
        folder, places, 2
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("base_model.model.lm_head.lora_A.weight", "the vocabulary"),
        ("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", "has no linear layer"),
        (f"{Q}.lora_magnitude_vector", "no lora_A or lora_B"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "no lora_A or lora_B"),
        (f"{Q}.base_layer.weight", "no lora_A or lora_B"),
    ],
)
def test_a_tensor_that_would_not_be_used_is_named(folder, places, name, reason):
    def work(tensors):
        tensors[name] = torch.ones(4, 64)
        tensors[name.replace("lora_A", "lora_B")] = torch.ones(96, 4)

    change_tensors(folder, work)
    text = refusal(folder, places)
    assert f"tensor {name} would not be used" in text
    assert reason in text


def test_half_a_pair_a_wrong_shape_and_values_that_are_no_numbers(folder, places):
    down, up = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
    change_tensors(folder, lambda tensors: tensors.pop(up))
    assert refusal(folder, places) == f"tensor {down} has no counterpart"
    change_tensors(folder, lambda tensors: tensors.update({up: torch.ones(65, 4)}))
    assert f"tensor {up} is [65, 4]" in refusal(folder, places)
    change_tensors(folder, lambda tensors: tensors.update({up: torch.full((64, 4), torch.nan)}))
    assert f"tensor {up} holds a value that is not finite" in refusal(folder, places)
    change_tensors(
        folder, lambda tensors: tensors.update({up: torch.ones(64, 4, dtype=torch.int8)})
    )
    assert f"tensor {up} is I8" in refusal(folder, places)


def test_pickle_files_links_and_paths_that_climb(folder, places, tmp_path):
    assert "climbs with '..'" in refusal(folder / ".." / "a", places)
    assert "is no folder" in refusal(tmp_path / "none", places)
    weights = folder / "adapter_model.safetensors"
    elsewhere = tmp_path / "elsewhere.safetensors"
    weights.rename(elsewhere)
    weights.symlink_to(elsewhere)
    assert "is a link out of the folder" in refusal(folder, places)
    weights.unlink()
    (folder / "adapter_model.bin").write_bytes(b"pickle")
    assert "adapter_model.bin can run code when it is read" in refusal(folder, places)
    (folder / "adapter_model.bin").unlink()
    assert "holds no adapter_model.safetensors" in refusal(folder, places)
    (folder / "adapter_config.json").unlink()
    assert "holds no adapter_config.json" in refusal(folder, places)


def test_half_a_file(folder, places):
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    assert "truncated" in refusal(folder, places)


def test_the_digest_is_of_weights_and_options(folder):
    files = [folder / "adapter_config.json", folder / "adapter_model.safetensors"]
    first = digest_of(*files)
    assert first == digest_of(*files)
    change(folder, lora_alpha=3)
    second = digest_of(*files)
    change_tensors(folder, lambda tensors: tensors[f"{Q}.lora_A.weight"].zero_())
    assert len({first, second, digest_of(*files)}) == 3


def test_patterns_of_rank_and_scale():
    config = {
        "peft_type": "LORA", "r": 8, "lora_alpha": 16,
        "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.up_proj": 4},
    }  # fmt: skip
    options = LoraOptions(config, "Model")
    assert (
        options.rank_of("model.layers.0.q_proj"),
        options.scale_of("model.layers.0.q_proj"),
    ) == (2, 8)
    assert options.scale_of("model.layers.1.mlp.up_proj") == 0.5
    assert options.scale_of("model.layers.11.mlp.up_proj") == 2
    assert options.rank_of("xq_proj") == 8


def test_modules_of_the_setting_are_pairs_or_objects():
    assert name_and_path("sql=/a/b=c") == ("sql", "/a/b=c")
    text = '{"name": "a=b", "path": "/x", "base_model_name": "m"}'
    assert name_and_path(text) == ("a=b", "/x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sql", "must be NAME=PATH"),
        ("sql=", "must be NAME=PATH"),
        ('{"name": "a"}', r"missing required field `path`; give \{\"name\": \"NAME\""),
        ('{"name": "a", "path": 3}', r"Expected `str`, got `int` - at `\$\.path`"),
        ('{"name": "a", "path": "b", "rank": 3}', "unknown field `rank`"),
        ('{"name": "a"', "must be|truncated"),
    ],
)
def test_other_modules_of_the_setting_say_what_to_give(text, said):
    with pytest.raises(ConfigError, match=f"lora_modules=.*({said})"):
        name_and_path(text)


@pytest.mark.parametrize(("stored", "rank", "scale"), [(2, 2, 10.0), (7, 7, 20.0), (5, 2, 10.0)])
def test_of_keys_that_match_a_layer_the_first_that_fits_its_tensors_counts(stored, rank, scale):
    """peft writes them sorted, whatever their order was in training."""
    layer = "model.layers.1.self_attn.k_proj"
    config = {
        "peft_type": "LORA", "r": 4, "rank_pattern": {"k_proj": 2, layer: 7},
        "alpha_pattern": {"k_proj": 20, layer: 140},
    }  # fmt: skip
    options = LoraOptions(config, "Test")
    assert (options.rank_of(layer, stored), options.scale_of(layer, stored)) == (rank, scale)
