"""Flags are generated from EngineConfig: every field has one, equivalent to YAML and variables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from tenonry.config import EngineConfig, PluginChoice, Settings, fact, setting
from tenonry.config.sources import ENV_PREFIX
from tenonry.errors import ConfigError
from tenonry_commands.arguments import add_engine_arguments, config_from_arguments, parse_options
from tenonry_commands.flags import add_flags, human_int
from tenonry_commands.setting_texts import setting_texts


def parser(**options: Any) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("test", allow_abbrev=False)
    add_engine_arguments(made, **options)
    return made


def config(*words: str, **overrides: Any) -> EngineConfig:
    return config_from_arguments(parser().parse_args(["m", *words]), **overrides)


TWO_LOGGERS = (PluginChoice(name="a"), PluginChoice(name="b"))


class TestHumanIntegers:
    @pytest.mark.parametrize(
        ("text", "value"),
        [("0", 0), ("-3", -3), ("32768", 32768), ("25.6k", 25_600), ("32K", 32_768), ("1.5m", 1_500_000),
         ("2M", 2 << 20),
         ("1g", 10**9), ("1.5G", 3 << 29), ("1.001k", 1001), ("2.3k", 2300), ("4.35m", 4_350_000)],
    )  # fmt: skip
    def test_are_read(self, text, value):
        assert human_int(text) == value

    @pytest.mark.parametrize(
        "text", ["", "k", "1.5", "1e3", "x", "1kk", "nank", "infk", "1e999G", "1 k k", "3t"]
    )
    def test_anything_else_is_refused_by_name(self, text):
        with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}' is not an integer"):
            human_int(text)


class TestFlags:
    def test_every_field_has_a_flag_and_its_help_says_default_and_variable(self):
        text = parser().format_help().replace("\n", " ")
        text = " ".join(text.split())
        for name, said in setting_texts(EngineConfig).items():
            if fact(EngineConfig.model_fields[name], "flag") is None:
                continue
            assert f"--{name.replace('_', '-')}" in text
            assert f"env: {ENV_PREFIX}{name.upper()}" in text
            assert " ".join(said.split()) in text

    def test_nothing_given_means_the_defaults(self):
        assert config() == EngineConfig(model="m")

    @pytest.mark.parametrize(
        ("words", "field", "value"),
        [
            (["--max-model-len", "32K"], "max_model_len", 32_768),
            (["--gpu-memory-utilization", "0.5"], "gpu_memory_utilization", 0.5),
            (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
            (["--skip-tokenizer-init"], "skip_tokenizer_init", True),
            (["--served-model-name", "a", "b"], "served_model_name", ("a", "b")),
            (["--served-model-name", "a", "b", "--served-model-name", "c"], "served_model_name", ("a", "b", "c")),
            (["--stat-logger", "a", "--stat-loggers", "b"], "stat_loggers", TWO_LOGGERS),
            (["--dtype", "bfloat16"], "dtype", "bfloat16"),
            (["--dtype", "half"], "dtype", "float16"),
            (["--io-processor", "none"], "io_processor", None),
            (["-tp", "2"], "tensor_parallel_size", 2),
            (["-pp", "2"], "pipeline_parallel_size", 2),
            (["-dp", "2"], "data_parallel_size", 2),
            (["--scheduler-cls", "a.b:C"], "scheduler", PluginChoice(name="a.b:C")),
            (["--distributed-executor-backend", "mp"], "executor", PluginChoice(name="mp")),
            (["--allow-plugin", "a", "--disable-plugin", "b"], "plugins.allow", ("a",)),
            (["--disable-plugin", "b"], "plugins.disable", ("b",)),
            (["--allow-experimental-plugins"], "allow_experimental_plugins", True),
        ],
    )  # fmt: skip
    def test_a_flag_sets_its_field(self, words, field, value):
        found: Any = config(*words)
        for part in field.split("."):
            found = getattr(found, part)
        assert found == value

    def test_the_model_is_a_word_or_a_flag(self):
        assert config_from_arguments(parser().parse_args(["--model", "x"])).model == "x"
        assert (
            config_from_arguments(parser(model_positional=False).parse_args(["--model", "x"])).model
            == "x"
        )

    def test_a_variable_names_the_file_and_the_flag_wins(self, tmp_path, monkeypatch):
        for name, seed in (("a", 3), ("b", 4)):
            (tmp_path / name).write_text(f"seed: {seed}")
        monkeypatch.setenv(f"{ENV_PREFIX}CONFIG", str(tmp_path / "a"))
        assert config().seed == 3
        assert config("--config", str(tmp_path / "b")).seed == 4
        monkeypatch.setenv(f"{ENV_PREFIX}CONFIG", "")
        assert config().seed == 0

    def test_overrides_win(self):
        assert config("--seed", "1", seed=2).seed == 2

    @pytest.mark.parametrize(
        "words", [["--max-num-seqs", "1.5"], ["--dtype", "int8"], ["--max-num-seq", "1"], ["--zz"]]
    )
    def test_wrong_usage_is_refused_by_the_parser(self, words, capsys):
        with pytest.raises(SystemExit) as caught:
            config(*words)
        assert caught.value.code == 2
        assert words[0] in capsys.readouterr().err

    def test_a_value_out_of_bounds_is_a_config_error(self):
        with pytest.raises(ConfigError, match="gpu_memory_utilization=nan"):
            config("--gpu-memory-utilization", "nan")


class TestOptions:
    """`--<kind>-option key=value`, whatever source chose the plugin."""

    def test_values_are_yaml_scalars(self):
        texts = ["a=1", "b=0.5", "c=true", "d=text", "e=[1, 2]", "f=", "g=x=y", "h=null"]
        assert parse_options(texts, "--x") == {
            "a": 1, "b": 0.5, "c": True, "d": "text", "e": [1, 2], "f": "", "g": "x=y", "h": None,
        }  # fmt: skip

    @pytest.mark.parametrize("text", ["a", "=1", "", "a:1"])
    def test_anything_else_is_refused_with_the_flag(self, text):
        with pytest.raises(ConfigError, match=f"--x-option '{text}' must look like key=value"):
            parse_options([text], "--x-option")

    def test_a_value_that_is_no_yaml_is_named(self):
        with pytest.raises(ConfigError, match=r"--x-option 'a=\[1' is not valid YAML"):
            parse_options(["a=[1"], "--x-option")

    def test_they_go_to_the_chosen_plugin_or_the_default_one(self):
        assert config("--scheduler", "x", "--scheduler-option", "a=1").scheduler == PluginChoice(
            name="x", options={"a": 1}
        )
        assert config("--worker-option", "a=1", "--worker-option", "b=2").worker == PluginChoice(
            name="auto", options={"a": 1, "b": 2}
        )

    @pytest.mark.parametrize(
        "kind", ["executor", "scheduler", "scheduling-policy", "worker", "io-processor", "launcher"]
    )
    def test_every_kind_has_its_flag(self, kind):
        field = kind.replace("-", "_")
        assert getattr(config(f"--{kind}-option", "a=1"), field).options == {"a": 1}

    def test_a_plugin_chosen_elsewhere_keeps_its_name_and_its_other_options(
        self, tmp_path, monkeypatch
    ):
        path = Path(tmp_path / "c.yaml")
        path.write_text(
            "scheduler: {name: static, options: {a: 1, b: 2}}\nworker: 'null'\n", "utf-8"
        )
        monkeypatch.setenv("TENONRY_EXECUTOR", "mp")
        made = config(
            "--config",
            str(path),
            "--scheduler-option",
            "b=3",
            "--worker-option",
            "c=4",
            "--executor-option",
            "d=5",
        )
        assert made.scheduler == PluginChoice(name="static", options={"a": 1, "b": 3})
        assert made.worker == PluginChoice(name="null", options={"c": 4})
        assert made.executor == PluginChoice(name="mp", options={"d": 5})

    @pytest.mark.parametrize("words", [[], ["--kv-connector", "none"]])
    def test_options_of_a_plugin_that_is_not_chosen_are_refused(self, words):
        with pytest.raises(ConfigError, match="--kv-connector-option needs --kv-connector"):
            config("--kv-connector-option", "a=1", *words)

    def test_stat_loggers_are_named_in_the_option(self, monkeypatch):
        words = ["--stat-logger-option", "a.x=1", "--stat-logger-option", "a.y.z=2"]
        expected = (PluginChoice(name="a", options={"x": 1, "y.z": 2}), PluginChoice(name="b"))
        assert config("--stat-logger", "a", "--stat-logger", "b", *words).stat_loggers == expected
        monkeypatch.setenv("TENONRY_STAT_LOGGERS", "[a, b]")
        assert config(*words).stat_loggers == expected

    def test_a_stat_logger_of_a_file_or_module_has_dots_in_its_name(self):
        words = ["--stat-logger", "./a.py:A", "--stat-logger", "a.b:C", "--stat-logger", "a"]
        texts = ["./a.py:A.x=1", "a.b:C.y=2", "a.b=3"]
        made = config(*words, *(word for text in texts for word in ("--stat-logger-option", text)))
        assert [logger.options for logger in made.stat_loggers] == [{"x": 1}, {"y": 2}, {"b": 3}]

    @pytest.mark.parametrize(
        ("yaml", "expected"),
        [
            ("worker: null", PluginChoice(name="null", options={"a": 1})),
            ("worker: {name: torch}", PluginChoice(name="torch", options={"a": 1})),
            ("worker: torch", PluginChoice(name="torch", options={"a": 1})),
        ],
    )
    def test_they_join_every_spelling_of_a_choice(self, yaml, expected, tmp_path):
        path = tmp_path / "c.yaml"
        path.write_text(yaml + "\n")
        assert config("--config", str(path), "--worker-option", "a=1").worker == expected

    @pytest.mark.parametrize(
        ("yaml", "flag"),
        [
            ("worker: {name: torch, options: }", ("--worker-option", "a=1")),
            ("stat_loggers:", ("--stat-logger-option", "console.a=1")),
        ],
    )
    def test_an_empty_value_is_a_config_error(self, yaml, flag, tmp_path):
        path = tmp_path / "c.yaml"
        path.write_text(yaml + "\n")
        with pytest.raises(ConfigError, match=yaml.partition(":")[0]):
            config("--config", str(path), *flag)

    @pytest.mark.parametrize("text", ["b.x=1", "x=1", "a=1", "a.=1"])
    def test_options_of_an_unknown_stat_logger_are_refused(self, text):
        with pytest.raises(ConfigError, match=r"write NAME\.key=value; NAME is a --stat-logger: a"):
            config("--stat-logger", "a", "--stat-logger-option", text)


class LaneSettings(Settings):
    """Settings of a part, as a third party declares them."""

    num_lanes: int = setting(4, ge=1, group="lanes", flag="--lanes", alias="-L", env="LANES")
    """Lanes of the chip."""
    lane_names: tuple[str, ...] = setting((), nargs="+")
    """Names of the lanes."""
    lane_secret: str = setting("", flag=None)


class TestFlagsOfAModel:
    """One generator makes flags of every model of settings, from what its fields declare."""

    def parser(self) -> argparse.ArgumentParser:
        made = argparse.ArgumentParser("test", allow_abbrev=False)
        add_flags(made, LaneSettings, "chip (acme-chip)")
        return made

    def test_group_flag_alias_and_variable_stand_at_the_field(self):
        text = " ".join(self.parser().format_help().split())
        text = text.replace("--lanes N, -L N", "--lanes, -L N")  # as from Python 3.13 on
        assert "lanes: --lanes, -L N Lanes of the chip. [default: 4; env: TENONRY_LANES]" in text
        assert "chip (acme-chip): --lane-names LANE_NAMES" in text
        assert "lane-secret" not in text

    @pytest.mark.parametrize("flag", ["--lanes", "-L"])
    def test_they_are_read_under_the_name_of_the_field(self, flag):
        words = [flag, "2K", "--lane-names", "a", "b", "--lane-names", "c"]
        found = vars(self.parser().parse_args(words))
        assert found == {"num_lanes": 2048, "lane_names": ["a", "b", "c"]}

    def test_a_flag_that_is_taken_names_both_owners(self):
        class Others(Settings):
            lanes: int = 1

        made = self.parser()
        with pytest.raises(
            ConfigError,
            match=r"^chip 2 \(acme-other\) at .*\.py:\d+ and chip \(acme-chip\) at .*\.py:\d+ both claim .*--lanes",
        ):
            add_flags(made, Others, "chip 2 (acme-other)")
