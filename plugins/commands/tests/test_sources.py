"""Settings of a command: precedence of flags, variables and the YAML file, and errors in that file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ConfigError
from tenonry_commands.sources import Sources, load_yaml


def make(file: Path, **flags: Any) -> EngineConfig:
    return Sources(flags, EngineConfig, file=file).make(EngineConfig)


class TestSources:
    """Flag over `TENONRY_<FIELD>` over YAML over default."""

    @pytest.fixture
    def yaml_file(self, tmp_path: Path) -> Path:
        path = tmp_path / "tenonry.yaml"
        path.write_text("model: from-yaml\nmax-num-seqs: 3\nseed: 3\nblock_size: 3\n", "utf-8")
        return path

    def test_precedence(self, yaml_file, monkeypatch):
        monkeypatch.setenv("TENONRY_SEED", "2")
        monkeypatch.setenv("TENONRY_BLOCK_SIZE", "2")
        made = make(yaml_file, block_size=1)
        assert made.block_size == 1
        assert made.seed == 2
        assert made.max_num_seqs == 3
        assert (made.model, made.dtype) == ("from-yaml", "auto")

    def test_a_worker_may_be_called_null(self, tmp_path):
        """In YAML that is also the word for nothing."""
        file = tmp_path / "tenonry.yaml"
        file.write_text("model: m\nworker: null\n", "utf-8")
        assert make(file).worker == PluginChoice(name="null")


class TestYamlFile:
    def write(self, tmp_path: Path, content: bytes) -> Path:
        path = tmp_path / "file.yaml"
        path.write_bytes(content)
        return path

    def test_keys_may_have_dashes_and_files_may_be_empty(self, tmp_path):
        assert load_yaml(self.write(tmp_path, b"max-num-seqs: 3")) == {"max_num_seqs": 3}
        assert load_yaml(self.write(tmp_path, b"# nothing")) == {}

    def test_nested_keys_are_left_alone(self, tmp_path):
        content = b"scheduler: {name: x, options: {some-key: 1}}"
        assert load_yaml(self.write(tmp_path, content))["scheduler"]["options"] == {"some-key": 1}

    @pytest.mark.parametrize(
        ("content", "text"),
        [(b"a: [1", "is not valid YAML"), (b"- a\n- b", "must hold a mapping of settings, not a list"),
         (b"just text", "not a str"), (b"model: \xff", "is not valid YAML"),
         (b"a: !!python/name:os.system", "valid YAML")],
    )  # fmt: skip
    def test_a_broken_file_is_named(self, tmp_path, content, text):
        path = self.write(tmp_path, content)
        with pytest.raises(ConfigError, match=text) as caught:
            load_yaml(path)
        assert str(path) in str(caught.value)

    def test_a_missing_file_and_a_folder_are_named(self, tmp_path):
        for path in (tmp_path / "none.yaml", tmp_path):
            with pytest.raises(ConfigError, match=r"cannot be read: [A-Z]"):
                load_yaml(path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_an_unreadable_file_is_named(self, tmp_path):
        path = self.write(tmp_path, b"")
        path.chmod(0)
        with pytest.raises(ConfigError, match="Permission denied"):
            load_yaml(path)

    def test_an_unknown_key_in_a_file_goes_to_the_first_model(self, tmp_path):
        made = make(self.write(tmp_path, b"max-model-length: 5"), model="m")
        assert made.model_extra == {"max_model_length": 5}
