"""Pickled weights become safetensors, and nothing in them is run."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer, models

from tenonry.cli import main
from tenonry.errors import ConfigError, ModelError
from tenonry_hf_hub import list_weights
from tenonry_models import convert_child
from tenonry_models.convert import CHILD, Job, convert, pickle_files
from tenonry_testkit.kernel.forked import ForkedCommand

SHARD_BYTES = 10**9


class Malicious:
    """Unpickling it with plain pickle would write a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


class ForkedChild(ForkedCommand):
    """The child in a fork of this process, which imports nothing again."""

    beginning = (sys.executable, "-I", "-m", CHILD)
    program = staticmethod(lambda words: convert_child.main())


@pytest.fixture
def forked(monkeypatch):
    """Children are forks; tests without this fixture cover a fresh one."""
    monkeypatch.setattr(subprocess, "Popen", ForkedChild)


@pytest.fixture
def state(small_model):
    _, model = small_model
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture
def folder(small_model, tmp_path):
    """The small model's folder without its safetensors."""
    made, _ = small_model
    (made / "model.safetensors").unlink()
    words = {f"w{number}": number for number in range(32)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(made / "tokenizer.json"))
    (made / "training_args.bin").write_bytes(b"whatever")
    return made


def stored(out):
    from safetensors import safe_open

    found = {}
    for path in list_weights(out).files:
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    return found


def write(folder, out, shard_bytes=SHARD_BYTES, *, tied=False):
    """Run the child's work in this process."""
    out.mkdir()
    files = tuple(str(path) for path in pickle_files(folder))
    convert_child.write(Job(files, str(out), shard_bytes, tied))
    return stored(out)


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


@pytest.mark.integration
def test_round_trip(folder, state, tmp_path):
    """Of a folder with code, which stays behind."""
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "modeling_odd.py").write_text("raise SystemExit(3)")
    words = convert(str(folder), str(tmp_path / "out"), SHARD_BYTES)
    assert str(len(state)) in words
    assert "not copied, because it is code: modeling_odd.py" in words
    assert_equal(stored(tmp_path / "out"), state)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip


def test_files_without_an_archive(folder, state, tmp_path):
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert_equal(write(folder, tmp_path / "out"), state)


@pytest.mark.integration
def test_the_result_can_be_served(forked, folder, state, tmp_path, capsys):
    torch.save(state, folder / "pytorch_model.bin")
    out = str(tmp_path / "out")
    assert main(["models", "convert", str(folder), out]) == 0
    assert "holds" in capsys.readouterr().out
    assert (
        main(["models", "check", out, "--worker", "torch", "--device", "cpu", "--memory", "1G"])
        == 0
    )


@pytest.mark.integration
def test_several_files_with_an_index(forked, folder, state, tmp_path):
    names = sorted(state)
    parts = {"pytorch_model-1.bin": names[::2], "pytorch_model-2.bin": names[1::2]}
    for file, keys in parts.items():
        torch.save({key: state[key] for key in keys}, folder / file)
    weight_map = {key: file for file, keys in parts.items() for key in keys}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    convert(str(folder), str(tmp_path / "out"), 3000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in state.values())
    assert_equal(stored(tmp_path / "out"), state)


@pytest.mark.integration
def test_tensors_that_share_memory(forked, folder, state, tmp_path):
    """Each is written whole; the head only where config.json does not tie it."""
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    state["part"] = state["model.embed_tokens.weight"][3:5].t()
    torch.save(state, folder / "pytorch_model.bin")
    assert_equal(write(folder, tmp_path / "untied"), state)
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    convert(str(folder), str(tmp_path / "tied"), SHARD_BYTES)
    del state["lm_head.weight"]
    assert_equal(stored(tmp_path / "tied"), state)


@pytest.mark.integration
def test_a_malicious_pickle_does_nothing(folder, state, tmp_path):
    victim = tmp_path / "victim"
    torch.save(state | {"evil": Malicious(victim)}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin cannot be read as plain tensors"):
        convert(str(folder), str(tmp_path / "out"), SHARD_BYTES)
    assert not victim.exists()
    assert not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump(Malicious(victim), file)
    with pytest.raises(convert_child.Unreadable, match="cannot be read as plain tensors"):
        convert_child.read(folder / "pytorch_model.bin")
    assert not victim.exists()


@pytest.mark.integration
def test_a_truncated_file_is_named(forked, folder, state, tmp_path):
    path = folder / "pytorch_model.bin"
    torch.save(state, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"pytorch_model\.bin cannot be read as plain tensors"):
        convert(str(folder), str(tmp_path / "out"), SHARD_BYTES)
    assert not (tmp_path / "out").exists()
    for kept in (0, 1, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(convert_child.Unreadable, match=r"pytorch_model\.bin"):
            convert_child.read(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "holds a list, not tensors by name"),
        ({"a": 1}, "holds a int as 'a'"),
        ({}, "holds a dict, not tensors"),
        ({"a": torch.eye(3).to_sparse()}, "tensor a is sparse"),
    ],
)
def test_what_is_no_checkpoint(folder, content, words):
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(convert_child.Unreadable, match=words):
        convert_child.read(folder / "pytorch_model.bin")


def test_a_tensor_in_two_files(folder, state, tmp_path):
    for name in ("one.pt", "two.pt"):
        torch.save(state, folder / name)
    with pytest.raises(convert_child.Unreadable, match=r"is in .*one\.pt and in .*two\.pt"):
        write(folder, tmp_path / "out")


def test_tensors_of_a_training_checkpoint(folder, state, tmp_path):
    torch.save({"epoch": 3, "state_dict": state}, folder / "last.ckpt")
    assert_equal(write(folder, tmp_path / "out", 3000), state)


def test_folders_that_cannot_be_converted(folder, state, tmp_path):
    with pytest.raises(ModelError, match="holds no weights in"):
        convert(str(folder), str(tmp_path / "out"), SHARD_BYTES)
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="exists; give a folder that does not"):
        convert(str(folder), str(folder), SHARD_BYTES)
    (folder / "model.safetensors").touch()
    with pytest.raises(ModelError, match=r"has \*\.safetensors already"):
        pickle_files(folder)


@pytest.mark.parametrize("name", ["../x.bin", "/etc/passwd.bin", "x.py", "gone.bin"])
def test_an_index_cannot_point_elsewhere(folder, name):
    index = {"weight_map": {"a": name}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"names '|lacks gone\.bin"):
        pickle_files(folder)
