"""Settings from keyword arguments and variables, and errors in them."""

from __future__ import annotations

import pytest
from pydantic.fields import FieldInfo

from tenonry.config import EngineConfig, PluginChoice, Settings, setting
from tenonry.config.sources import ENV_PREFIX, environment_values, make_config
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
    """Keyword argument over `TENONRY_<FIELD>` over default."""

    def test_precedence(self, monkeypatch):
        monkeypatch.setenv("TENONRY_SEED", "2")
        monkeypatch.setenv("TENONRY_BLOCK_SIZE", "2")
        made = make_config({"model": "m", "block_size": 1})
        assert (made.block_size, made.seed, made.dtype) == (1, 2, "auto")

    def test_a_model_of_none_does_not_hide_the_variable(self, monkeypatch):
        monkeypatch.setenv("TENONRY_MODEL", "from-variable")
        assert make_config({"model": None}).model == "from-variable"

    @pytest.mark.parametrize(
        ("field", "text", "value"),
        [
            ("max_num_seqs", "7", 7),
            ("max_model_len", "32K", 32_768),
            ("gpu_memory_utilization", "0.5", 0.5),
            ("enable_prefix_caching", "false", False),
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
            ("tokenizer", "null", "null"),
            ("tokenizer", "{{ a[0]: x }}", "{{ a[0]: x }}"),
            ("skip_tokenizer_init", "1", True),
            ("revision", "0012", "0012"),
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

    def test_a_worker_may_be_called_null(self, monkeypatch):
        """In YAML that is also the word for nothing."""
        monkeypatch.setenv("TENONRY_WORKER", "null")
        assert make_config({"model": "m"}).worker == PluginChoice(name="null")

    def test_a_field_may_name_its_variable(self, monkeypatch):
        class Lanes(Settings):
            num_lanes: int = setting(1, env="LANES")

        monkeypatch.setenv("TENONRY_LANES", "3")
        assert environment_values(Lanes.model_fields) == {"num_lanes": 3}
        assert make_config({"model": "m"}, Lanes.model_fields).model_extra == {"num_lanes": 3}

    @pytest.mark.parametrize("name", ["MAX_NUM_SEQ", "STAT_LOGGER", "MAX_MODEL_LENGTH"])
    def test_a_variable_that_is_nearly_a_setting_is_refused(self, monkeypatch, name):
        """Otherwise a misspelling would mean the default, silently."""
        monkeypatch.setenv(f"TENONRY_{name}", "3")
        with pytest.raises(
            ConfigError,
            match=rf"TENONRY_{name} is not a setting; did you mean TENONRY_{name[:9]}\w+\?",
        ):
            environment_values(EngineConfig.model_fields)
        # It may be a plugin's, until these are known.
        assert environment_values(EngineConfig.model_fields, is_complete=False) == {}

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
