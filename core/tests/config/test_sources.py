"""Sources of settings: precedence, variables, the YAML file, and their errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from tenonry.config import EngineConfig, PluginChoice
from tenonry.config.sources import ENV_PREFIX, environment_values, load_yaml, make_config
from tenonry.errors import ConfigError

SERVICE_VARIABLES = {
    "_SERVICE_HOST": "10.0.0.1",
    "_SERVICE_PORT": "8000",
    "_SERVICE_PORT_HTTP_METRICS": "8000",
    "_PORT": "tcp://10.0.0.1:8000",
    "_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "_PORT_8000_TCP_PROTO": "tcp",
    "_PORT_8000_TCP_PORT": "8000",
    "_PORT_8000_TCP_ADDR": "10.0.0.1",
    "_PORT_5353_UDP": "udp://[fd00::1]:5353",
}


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
        made = make_config({"config": yaml_file, "block_size": 1})
        assert made.block_size == 1
        assert made.seed == 2
        assert made.max_num_seqs == 3
        assert (made.model, made.dtype) == ("from-yaml", "auto")

    def test_the_environment_can_be_left_out(self, monkeypatch):
        monkeypatch.setenv("TENONRY_SEED", "2")
        assert make_config({"model": "m"}, use_environment=False).seed == 0

    def test_a_missing_flag_does_not_hide_other_sources(self, yaml_file):
        assert make_config({"config": yaml_file, "model": None}).model == "from-yaml"

    @pytest.mark.parametrize(
        ("field", "text", "value"),
        [
            ("max_num_seqs", "7", 7),
            ("max_model_len", "32K", 32_768),
            ("gpu_memory_utilization", "0.5", 0.5),
            ("enable_prefix_caching", "false", False),
            ("enforce_eager", "1", True),
            ("served_model_name", "[a, b]", ("a", "b")),
            ("served_model_name", "a", ("a",)),
            ("stat_loggers", "console", (PluginChoice(name="console"),)),
            (
                "stat_loggers",
                "{name: console, options: {x: 1}}",
                (PluginChoice(name="console", options={"x": 1}),),
            ),
            ("scheduler", "./my.py:Mine", PluginChoice(name="./my.py:Mine")),
            (
                "scheduler",
                "{name: static, options: {x: 1}}",
                PluginChoice(name="static", options={"x": 1}),
            ),
            ("io_processor", "none", None),
            ("model", "123", "123"),
            ("tokenizer", "1e5", "1e5"),
            ("revision", "0012", "0012"),
            ("chat_template", "{{ messages[0]: x }}", "{{ messages[0]: x }}"),
            ("attention_backend", "null", "null"),
            ("dtype", "float16", "float16"),
        ],
    )
    def test_a_variable_means_what_the_flag_means(self, monkeypatch, field, text, value):
        monkeypatch.setenv(ENV_PREFIX + field.upper(), text)
        assert getattr(make_config({} if field == "model" else {"model": "m"}), field) == value

    def test_an_empty_variable_is_no_variable(self, monkeypatch):
        for field in EngineConfig.model_fields:
            monkeypatch.setenv(ENV_PREFIX + field.upper(), "")
        assert environment_values(EngineConfig.model_fields) == {}

    def test_every_field_has_a_variable(self, monkeypatch):
        for field in EngineConfig.model_fields:
            monkeypatch.setenv(ENV_PREFIX + field.upper(), "1")
        assert set(environment_values(EngineConfig.model_fields)) == set(EngineConfig.model_fields)

    @pytest.mark.parametrize("source", ["variable", "file"])
    def test_a_worker_may_be_called_null(self, monkeypatch, tmp_path, source):
        """In YAML that is also the word for nothing."""
        file = tmp_path / "tenonry.yaml"
        file.write_text("model: m\n" + ("worker: null\n" if source == "file" else ""), "utf-8")
        if source == "variable":
            monkeypatch.setenv("TENONRY_WORKER", "null")
        assert make_config({"config": file}).worker == PluginChoice(name="null")

    @pytest.mark.parametrize("name", ["MAX_NUM_SEQ", "STAT_LOGGER", "MAX_MODEL_LENGTH"])
    def test_a_variable_that_is_nearly_a_setting_is_refused(self, monkeypatch, name):
        """Otherwise a misspelling would mean the default, silently."""
        monkeypatch.setenv(f"TENONRY_{name}", "3")
        with pytest.raises(
            ConfigError,
            match=rf"TENONRY_{name} is no setting; did you mean TENONRY_{name[:9]}\w+\?",
        ):
            environment_values(EngineConfig.model_fields)

    @pytest.mark.parametrize(
        "name", ["TENONRY_API_KEY", "TENONRY_TESTKIT_EFFORT", "MAX_NUM_SEQ", "TENONRY"]
    )
    def test_variables_of_others_are_left_alone(self, monkeypatch, name):
        monkeypatch.setenv(name, "3")
        assert environment_values(EngineConfig.model_fields) == {}

    @pytest.mark.parametrize("service", ["TENONRY", "TENONRY_MODEL", "TENONRY_DATA_PARALLEL_RPC"])
    def test_variables_of_a_kubernetes_service_are_ignored(self, monkeypatch, caplog, service):
        """A Service called `tenonry` puts these into every container of its namespace."""
        for name, value in SERVICE_VARIABLES.items():
            monkeypatch.setenv(service + name, value)
        fields = {
            name: FieldInfo.from_annotation(kind)
            for name, kind in {"port": int, "service_port": int, "service_host": str}.items()
        }
        monkeypatch.setenv("TENONRY_SEED", "2")
        with caplog.at_level("INFO", "tenonry"):
            assert environment_values(fields | EngineConfig.model_fields) == {"seed": 2}
        assert len(caplog.messages) == 1
        assert all(service + name in caplog.messages[0] for name in SERVICE_VARIABLES)

    def test_a_port_and_an_address_of_the_user_are_none_of_kubernetes(self, monkeypatch):
        monkeypatch.setenv("TENONRY_EXPERT_RENDEZVOUS", "tcp://10.0.0.1:8000")
        monkeypatch.setenv("TENONRY_DATA_PARALLEL_RPC_PORT", "8000")
        assert environment_values(EngineConfig.model_fields) == {
            "expert_rendezvous": "tcp://10.0.0.1:8000",
            "data_parallel_rpc_port": 8000,
        }

    def test_a_variable_that_is_no_yaml_is_named(self, monkeypatch):
        monkeypatch.setenv("TENONRY_STAT_LOGGERS", "[console")
        with pytest.raises(
            ConfigError, match=r"TENONRY_STAT_LOGGERS='\[console' is not valid YAML"
        ):
            make_config({"model": "m"})

    def test_a_bad_value_of_a_variable_is_refused_by_field(self, monkeypatch):
        monkeypatch.setenv("TENONRY_MAX_NUM_SEQS", "many")
        with pytest.raises(ConfigError, match="max_num_seqs='many'"):
            make_config({"model": "m"})
        monkeypatch.setenv("TENONRY_MAX_NUM_SEQS", "manyk")
        with pytest.raises(ConfigError, match="max_num_seqs='manyk': 'manyk' is not an integer"):
            make_config({"model": "m"})


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

    def test_an_unknown_key_in_a_file_is_suggested(self, tmp_path):
        with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
            make_config({"model": "m", "config": self.write(tmp_path, b"max-model-length: 5")})
