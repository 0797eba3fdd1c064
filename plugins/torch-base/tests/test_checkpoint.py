"""A checkpoint that does not fit its config.json is rejected from headers alone, naming file and tensor."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tenonry.errors import ModelError
from tenonry_torch_base.checkpoint import Checkpoint

SMALL = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 32, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2}


def skeleton(kind="llama", **changes):
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    values = (MIXTRAL if kind == "mixtral" else SMALL) | changes
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**values))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Kind → folder of a model in several files."""
    folders = {}

    def folder_of(kind, **changes):
        from transformers import AutoModelForCausalLM

        key = (kind, *changes.items())
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp(kind)
            config = skeleton(kind, **changes).config
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            model.save_pretrained(folders[key], max_shard_size="4KB")
        return folders[key]

    return folder_of


@pytest.fixture
def tensors(saved):
    """All tensors of the saved llama, to be written again with a change."""
    found = {}
    for path in sorted(saved("llama").glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    return found


def check(folder, model):
    checkpoint = Checkpoint(folder, model)
    checkpoint.check(model)
    return checkpoint


@pytest.mark.parametrize("kind", ["llama", "mixtral", "gpt2", "opt"])
def test_what_was_saved_fits(saved, kind):
    """Experts are stored one by one, and joined; GPT-2 omits the prefix, and its head is tied."""
    from transformers import CONFIG_MAPPING

    changes = {} if kind in ("llama", "mixtral") else CONFIG_MAPPING[kind]().to_dict() | {
        "n_layer": 1, "num_hidden_layers": 1, "vocab_size": 32,
    }  # fmt: skip
    changes = {key: value for key, value in changes.items() if isinstance(value, int | str)}
    folder = saved(kind, **changes)
    model = skeleton(kind, **changes)
    checkpoint = check(folder, model)
    assert checkpoint.num_bytes == 4 * sum(weight.numel() for weight in model.parameters())
    assert set(checkpoint.targets.values()) <= set(model.state_dict())
    assert [path.name for path in checkpoint.files] == sorted(
        path.name for path in folder.glob("*.safetensors")
    )


def test_a_tied_head_need_not_be_stored(saved, tensors, tmp_path):
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    check(tmp_path, skeleton(tie_word_embeddings=True))
    with pytest.raises(ModelError, match=r"1 of the tensors .* such as lm_head\.weight"):
        check(tmp_path, skeleton())


def test_what_the_model_has_no_place_for_is_left_alone(tensors, tmp_path):
    save_file(tensors | {"vision.patch.weight": torch.zeros(8)}, tmp_path / "model.safetensors")
    checkpoint = check(tmp_path, skeleton())
    assert "vision.patch.weight" not in checkpoint.tensors
    assert checkpoint.num_bytes == sum(tensor.nbytes for tensor in tensors.values())


def test_layers_that_predict_further_ahead_are_left_alone(saved):
    """DeepSeek V3 and its kin store them behind the others; the class names them, or the config counts them."""
    model = skeleton(num_hidden_layers=1)
    model.config.num_nextn_predict_layers = 1
    check(saved("llama"), model)
    del model.config.num_nextn_predict_layers
    with pytest.raises(ModelError, match="asks for 1 layers"):
        check(saved("llama"), model)
    model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.1\."]
    check(saved("llama"), model)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"num_hidden_layers": 3},
            r"LlamaForCausalLM: 9 of the tensors that config\.json asks for .*model\.layers\.2\.",
        ),
        (
            {"intermediate_size": 25},
            r"tensor model\.layers\.0\.mlp\.\S+ in model-0000\d-of-000\d\d\.safetensors is \[.*config\.json asks for",
        ),
        (
            {"num_hidden_layers": 1},
            r"has model\.layers\.1\.\S+, config\.json asks for 1 layers in model\.layers, 0 to 0; correct",
        ),
        ({"vocab_size": 33}, r"tensor (lm_head|model\.embed_tokens)\.weight in .* is \[32, 16\]"),
        ({"num_key_value_heads": 2}, r"k_proj\.weight in .* is \[8, 16\], config\.json asks for \[16, 16\]"),
    ],
)  # fmt: skip
def test_a_config_that_lies_is_told_by_the_tensor(saved, changes, words):
    with pytest.raises(ModelError, match=words):
        check(saved("llama"), skeleton(**changes))


def test_experts_that_do_not_add_up(saved, tmp_path):
    words = r"model\.layers\.0\.mlp\.experts\.\S+ .* is joined from [48] tensors"
    with pytest.raises(ModelError, match=words):
        check(saved("mixtral"), skeleton("mixtral", intermediate_size=23))
    with pytest.raises(ModelError, match=r"gate\.weight in .* is \[4, 16\]"):
        check(saved("mixtral"), skeleton("mixtral", num_local_experts=3))


def test_a_shard_that_is_cut_short_is_named(saved, tmp_path):
    folder = saved("llama")
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ModelError, match=rf"{shard.name} is truncated: tensor \S+ ends at byte"):
        Checkpoint(tmp_path, skeleton())
    shard.unlink()
    with pytest.raises(ModelError, match=rf"lacks 1 of the \d+ weight files .*{shard.name}"):
        Checkpoint(tmp_path, skeleton())


def test_an_index_is_believed_about_files_and_not_about_their_tensors(saved, tmp_path):
    """As in transformers: a tensor is read from wherever it is, and an absent one is reported if the model has it."""
    for path in saved("llama").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first, *others = set(content["weight_map"].values())
    content["weight_map"] = dict.fromkeys(content["weight_map"], first)
    content["weight_map"] |= {f"model.more.{file}": file for file in others}
    index.write_text(json.dumps(content))
    found = Checkpoint(tmp_path, skeleton())
    found.check(skeleton())
    assert len(found.files) == 1 + len(others)
