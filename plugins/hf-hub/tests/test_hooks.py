"""Resolution of the user's input to the model's facts, or to an error with the accepted forms."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ModelError, PluginError
from tenonry.plugin.manager import PluginManager
from tenonry_hf_hub import hooks


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No test of this file may look at the network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def resolve(model, **fields):
    return hooks.tenonry_resolve_model(EngineConfig(model=str(model), **fields))


def test_facts_of_a_folder(model_folder):
    info = resolve(model_folder)
    assert info.path == info.tokenizer_path == str(model_folder)
    assert info.architecture == "LlamaForCausalLM"
    assert info.max_model_len == 256
    assert info.vocab_size == 100
    assert info.eos_token_ids == (2, 3)
    assert info.default_sampling == {"top_k": 5}
    assert info.dtype == "bfloat16"
    assert info.commit == ""
    assert info.name == str(model_folder)
    assert info.needs_lockstep is False


def test_the_kernel_finds_the_hook(model_folder):
    manager = PluginManager(discover=False)
    manager.register(hooks, "hf-hub")
    assert manager.resolve_model(EngineConfig(model=str(model_folder))).vocab_size == 100


def test_another_hook_module_is_asked_first(model_folder):
    class Other:
        @staticmethod
        @hooks.hookimpl
        def tenonry_resolve_model(config):
            return hooks.ModelInfo(
                name="x", path="", architecture="X", max_model_len=1, vocab_size=1
            )

    manager = PluginManager(discover=False)
    manager.register(Other, "other")
    manager.register(hooks, "hf-hub")
    assert manager.resolve_model(EngineConfig(model="x")).architecture == "X"


def test_relative_folder_and_home(model_folder, monkeypatch):
    monkeypatch.chdir(model_folder.parent)
    assert resolve("tiny").path == str(model_folder)
    assert resolve("./tiny/").path == str(model_folder)
    monkeypatch.setenv("HOME", str(model_folder.parent))
    assert resolve("~/tiny").path == str(model_folder)


def test_registered_name(registered):
    assert resolve("storyteller").path == str(registered)
    assert resolve("storyteller:path").path == str(registered)


def test_registered_name_adds_what_generation_config_lacks(registered):
    config = registered / "generation_config.json"
    config.write_text('{"top_k": 5}')
    assert resolve("calm").default_sampling == {"temperature": 0.2, "top_k": 5}
    config.write_text('{"temperature": 0.7}')
    assert resolve("calm").default_sampling == {"temperature": 0.7}


def test_registered_name_that_answers_nonsense(registered):
    with pytest.raises(ModelError, match=r"storyteller 1\.0\) answered with a int"):
        resolve("broken")


def test_unknown_module(registered):
    with pytest.raises(PluginError, match="cannot be imported"):
        resolve("no_such_module_here:path")


def test_nearest_registered_name_is_proposed(registered):
    with pytest.raises(ModelError, match="did you mean the registered name 'storyteller'"):
        resolve("storyteler")


def test_hub_id_while_offline(registered, tmp_path, monkeypatch):
    with pytest.raises(ModelError) as caught:
        resolve("some-org/some-model-that-nobody-has")
    text = str(caught.value)
    assert "some-org/some-model-that-nobody-has" in text
    assert "HF_HUB_OFFLINE" in text
    assert "local folder" in text
    assert "storyteller" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/no/such/folder", "folder /no/such/folder does not exist"),
        ("./nowhere", "does not exist"),
        ("a/b/c", "does not exist"),
        ("https://example.org/model", "does not exist"),
        ("what is this?", "not written like a hub id"),
    ],
)
def test_no_such_model(name, words):
    with pytest.raises(ModelError, match=words):
        resolve(name)


def test_a_file_is_not_a_model(tmp_path):
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ModelError, match=r"model\.onnx is a file; give the folder"):
        resolve(tmp_path / "model.onnx")


def test_folder_without_config(tmp_path):
    (tmp_path / "readme.md").touch()
    with pytest.raises(ModelError, match=r"has no config\.json \(it holds: readme\.md\)"):
        resolve(tmp_path)


def test_folder_with_only_a_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(ModelError, match="holds a tokenizer, but no model"):
        resolve(tmp_path)


def test_only_pickled_weights(model_folder):
    (model_folder / "model.safetensors").rename(model_folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"only pytorch_model\.bin"):
        resolve(model_folder)
    assert resolve(model_folder, load_format="dummy").vocab_size == 100


def test_broken_config(model_folder):
    (model_folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON"):
        resolve(model_folder)


def test_tokenizer_override(model_folder, tmp_path):
    other = tmp_path / "tok"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    token = {"eos_token": "<end>", "added_tokens_decoder": {"9": {"content": "<end>"}}}
    (other / "tokenizer_config.json").write_text(json.dumps(token))
    info = resolve(model_folder, tokenizer=str(other))
    assert info.tokenizer_path == str(other)
    assert info.eos_token_ids == (2, 3, 9)
    assert (
        resolve(model_folder, tokenizer=str(other), skip_tokenizer_init=True).tokenizer_path == ""
    )


@pytest.mark.integration
def test_hook_module_is_light():
    """Neither torch nor a library of the hub may be loaded before a hub id is looked up."""
    code = (
        "import sys, tenonry_hf_hub.hooks, tenonry_hf_hub;"
        "heavy = ('torch', 'transformers', 'tokenizers', 'huggingface_hub', 'safetensors');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_an_end_token_that_no_answer_can_have_is_named(tmp_path, model_folder, name):
    """Rejected only if no other end token is left, and not if prompts and ends are token ids."""
    copy = shutil.copytree(model_folder, tmp_path / "model")
    for file in ("config.json", "generation_config.json"):
        values = json.loads((copy / file).read_text())
        values.pop("eos_token_id", None)
        (copy / file).write_text(json.dumps(values | {"eos_token_id": 3}))
    values = json.loads((copy / name).read_text())
    (copy / name).write_text(json.dumps(values | {"eos_token_id": [100]}))
    assert resolve(copy).eos_token_ids == (3,)
    for file in ("config.json", "generation_config.json"):
        if file != name:
            values = json.loads((copy / file).read_text())
            (copy / file).write_text(json.dumps(values | {"eos_token_id": None}))
    with pytest.raises(ModelError, match=rf"{name}: eos_token_id 100 is outside .* ids 0 to 99"):
        resolve(copy)
    assert resolve(copy, skip_tokenizer_init=True).eos_token_ids == ()
