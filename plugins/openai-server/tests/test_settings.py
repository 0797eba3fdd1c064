"""Flags, environment and YAML of `tenonry serve`, and the socket that it takes first."""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tenonry.errors import ConfigError
from tenonry.info import PluginRecord
from tenonry.plugin.discovery import EXCLUDED
from tenonry.transport.keys import read_keys
from tenonry_commands.sources import Sources
from tenonry_openai_server.command import ServeCommand
from tenonry_openai_server.serving.front_end import own_engines, shared_keys
from tenonry_openai_server.serving.listener import listen, owner_of
from tenonry_openai_server.settings import ServerConfig, configs_from_arguments


@pytest.fixture(autouse=True)
def loggers(monkeypatch):
    """Stat loggers that count as installed."""
    found = [PluginRecord("stat_logger", name, "m:C") for name in ("prometheus", "mine", "console")]
    monkeypatch.setattr("tenonry_openai_server.settings.installed", lambda _: found)
    return found


@pytest.fixture(autouse=True)
def _clean(no_outside_settings):
    """For every test."""


def parse(*words: str):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServeCommand().add_arguments(parser)
    return configs_from_arguments(parser.parse_args(words))


def test_several_servers():
    _, server = parse("demo", "--api-server-count", "4", "--api-server-death", "stop")
    assert (server.api_server_count, server.api_server_death) == (4, "stop")
    _, server = parse("demo")
    assert (server.api_server_count, server.api_server_death) == (1, "restart")
    for count in ("0", "257"):
        with pytest.raises(ConfigError, match=f"api_server_count={count}"):
            parse("demo", "--api-server-count", count)


def test_headless_serves_nothing(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "tenonry_scale_out.node.run_headless", lambda config: seen.append(config.model) or 7
    )
    parser = argparse.ArgumentParser()
    command = ServeCommand()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["demo", "--headless", "--port", "0"])) == 7
    assert seen == ["demo"]


class TestServersOfOneGroup:
    """Engines that step together, each with a server of its own."""

    WORDS = (
        "demo",
        "--enable-expert-parallel",
        "--data-parallel-size",
        "2",
        "--data-parallel-rank",
    )

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (("--api-server-count", "3"), "api_server_count=3 with data_parallel_rank=1"),
            (("--prefill-engines", "1"), "prefill_engines=1 with data_parallel_rank=1"),
        ],
    )
    def test_what_needs_all_engines_is_refused(self, words, text):
        with pytest.raises(ConfigError, match=text):
            parse(*self.WORDS, "1", *words)

    def test_the_front_end_has_the_engines_of_the_group(self, monkeypatch):
        made = []
        monkeypatch.setattr(
            "tenonry_scale_out.group.engines_of_group",
            lambda *given: made.append(given) or "engines",
        )
        monkeypatch.setattr(
            "tenonry.client.engines.OwnedEngines", lambda config, context: (config.model, context)
        )
        config, _ = parse(*self.WORDS, "1")
        assert own_engines(config) == "engines"
        assert made == [(config, "server")]
        alone, _ = parse("demo", "--data-parallel-size", "2", "--data-parallel-rank", "1")
        assert own_engines(alone) == ("demo", "server")


def names(config) -> list[str]:
    return [choice.name for choice in config.stat_loggers]


def test_defaults():
    config, server = parse("demo")
    assert config.model == "demo"
    assert (server.host, server.port, server.api_key, server.max_body_bytes) == (
        "127.0.0.1",
        8000,
        (),
        16 << 20,
    )
    assert names(config) == ["console", "prometheus"]


def test_flags_environment_and_file_in_this_order(tmp_path, monkeypatch):
    path = tmp_path / "c.yaml"
    path.write_text(
        "model: from-file\nport: 1\nhost: 0.0.0.0\nmax-num-seqs: 3\nseed: 5\nblock_size: 8\napi_key: [a, b]\n"
    )
    monkeypatch.setenv("TENONRY_PORT", "2")
    monkeypatch.setenv("TENONRY_SEED", "6")
    monkeypatch.setenv("TENONRY_MAX_NUM_SEQS", "4")
    config, server = parse("--config", str(path), "--max-num-seqs", "5")
    assert (config.model, config.max_num_seqs, config.seed, config.block_size) == (
        "from-file",
        5,
        6,
        8,
    )
    assert (server.host, server.port, server.api_key) == ("0.0.0.0", 2, ("a", "b"))
    config, server = parse("mine", "--config", str(path), "--port", "3", "--api-key", "k")
    assert (config.model, server.port, server.api_key) == ("mine", 3, ("k",))


def test_a_variable_that_is_nearly_a_setting_is_refused(monkeypatch):
    """A slip of the finger would open the server to everybody."""
    monkeypatch.setenv("TENONRY_API_KEYS", "secret")
    with pytest.raises(
        ConfigError, match=r"TENONRY_API_KEYS is not a setting; did you mean TENONRY_API_KEY\?"
    ) as caught:
        parse("demo")
    assert "secret" not in str(caught.value)


def test_a_variable_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "c.yaml"
    path.write_text("max_num_seqs: 7\nport: 81\n")
    monkeypatch.setenv("TENONRY_CONFIG", str(path))
    config, settings = parse("demo")
    assert (config.max_num_seqs, settings.port) == (7, 81)


def test_the_environment_wins_over_the_file_for_hook_modules_too(tmp_path, monkeypatch):
    file = tmp_path / "settings.yaml"
    file.write_text("plugins: {disable: [of-the-file]}\n")
    monkeypatch.setenv("TENONRY_PLUGINS", "{disable: [of-the-environment]}")
    assert parse("demo", "--config", str(file))[0].plugins.disable == ("of-the-environment",)
    assert parse("demo", "--config", str(file), "--disable-plugin", "x")[0].plugins.disable == (
        "x",
    )


def test_null_in_the_file_means_what_it_means_to_other_verbs(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("io_processor: null\nworker: null\nmax_model_len: null\n")
    engine, _ = parse("demo", "--config", str(file))
    assert (engine.io_processor, engine.worker.name, engine.max_model_len) == (None, "null", None)
    engine, _ = parse("demo", "--config", str(file), "--worker", "torch")
    assert engine.worker.name == "torch"


def test_sizes_are_read_alike_from_every_source(tmp_path, monkeypatch):
    file = tmp_path / "settings.yaml"
    file.write_text("max_body_bytes: 32M\nport: 9k\n")
    monkeypatch.setenv("TENONRY_MAX_HEADER_BYTES", "128K")
    _, server = parse("demo", "--config", str(file), "--backlog", "1k")
    assert (server.max_body_bytes, server.port, server.max_header_bytes, server.backlog) == (
        32 << 20,
        9000,
        131072,
        1000,
    )


@pytest.mark.parametrize("text", [" ", ",", " , "])
def test_a_blank_variable_of_keys_does_not_open_the_server(monkeypatch, text):
    monkeypatch.setenv("TENONRY_API_KEY", text)
    with pytest.raises(ConfigError, match="api_key: an API key is empty"):
        parse("demo")


def test_keys_from_the_environment(monkeypatch):
    monkeypatch.setenv("TENONRY_API_KEY", "one, two")
    assert parse("demo")[1].api_key == ("one", "two")
    assert parse("demo", "--api-key", "three", "--api-key", "four")[1].api_key == ("three", "four")


@pytest.mark.parametrize(
    ("words", "yaml", "expected"),
    [
        ((), "", ("responses", "messages", "pooling", "tenant-limits")),
        (("--route", "messages"), "", ("messages",)),
        ((), "route: []", ()),
        ((), "route: pooling", ("pooling",)),
    ],
)
def test_routes_are_the_usual_installed_ones_unless_named(
    words, yaml, expected, tmp_path, monkeypatch
):
    monkeypatch.setenv(EXCLUDED, "tenonry-route-page")
    path = tmp_path / "c.yaml"
    path.write_text(yaml)
    _, settings = parse("demo", "--config", str(path), *words)
    assert settings.route == expected


@pytest.mark.parametrize(
    ("words", "yaml", "expected"),
    [
        (("--stat-logger", "console"), "", ["console"]),
        (("--no-log-stats",), "", []),
        ((), "stat_loggers: [mine]", ["mine"]),
        ((), "stat_loggers: []", []),
        (("--stat-logger-option", "console.interval_s=1"), "", ["console", "prometheus"]),
    ],
)
def test_stat_loggers_are_the_usual_ones_unless_named(words, yaml, expected, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(yaml)
    config, _ = parse("demo", "--config", str(path), *words)
    assert names(config) == expected
    if words[:1] == ("--stat-logger-option",):
        assert config.stat_loggers[0].options == {"interval_s": 1}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ["console", "prometheus", "opentelemetry"]),
        (("--no-log-stats",), ["opentelemetry"]),
        (("--stat-logger", "mine"), ["mine", "opentelemetry"]),
        (("--stat-logger", "opentelemetry", "--stat-logger", "mine"), ["mine", "opentelemetry"]),
    ],
)
def test_an_endpoint_for_traces_adds_the_stat_logger_that_sends_them(words, expected):
    """AF-22."""
    config, _ = parse("demo", "--otlp-traces-endpoint", "http://there:4318", *words)
    assert names(config) == expected
    assert config.stat_loggers[-1].options == {"endpoint": "http://there:4318"}


def test_other_options_of_the_one_that_sends_traces_stay():
    option = "opentelemetry.service_name=mine"
    words = (
        "--stat-logger",
        "opentelemetry",
        "--stat-logger-option",
        option,
        "--otlp-traces-endpoint",
        "http://a",
    )
    config, _ = parse("demo", *words)
    assert config.stat_loggers[0].options == {"service_name": "mine", "endpoint": "http://a"}


def test_usual_stat_logger_that_is_not_installed_is_left_out(loggers):
    del loggers[0]
    assert names(parse("demo")[0]) == ["console"]
    loggers.clear()
    assert names(parse("demo")[0]) == []


def test_options_join_a_plugin_that_the_file_chose(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("scheduler: {name: static, options: {a: 1}}\n")
    config, _ = parse("demo", "--config", str(path), "--scheduler-option", "b=2")
    assert (config.scheduler.name, config.scheduler.options) == ("static", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("demo", "--port", "70000"), "port=70000"),
        (("demo", "--max-body-bytes", "1"), "max_body_bytes=1"),
        (("demo", "--api-key", " "), "an API key is empty"),
        (("demo", "--ssl-keyfile", "x"), "need ssl_certfile"),
        (("demo", "--root-path", "api"), "root_path='api'"),
        ((), "model"),
    ],
)
def test_bad_setting_is_named(words, message):
    with pytest.raises(ConfigError, match=message):
        parse(*words)


def test_null_means_the_default():
    sources = Sources({"port": None, "api_key": None}, ServerConfig, use_environment=False)
    assert sources.make(ServerConfig) == ServerConfig()


def test_bad_key_is_not_repeated():
    with pytest.raises(ConfigError) as error:
        Sources({"api_key": ["secret", 5]}, ServerConfig).make(ServerConfig)
    assert "secret" not in str(error.value)


def test_unknown_setting_of_the_file_is_named(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("model: demo\nmax_num_seq: 3\n")
    with pytest.raises(
        ConfigError, match="unknown setting 'max_num_seq'; did you mean 'max_num_seqs'"
    ):
        parse("--config", str(path))


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"host": "0.0.0.0", "port": 5}, "http://127.0.0.1:5"),
        ({"host": "::", "root_path": "/api"}, "http://[::1]:8000/api"),
        ({"ssl_certfile": "c"}, "https://127.0.0.1:8000"),
        ({"uds": "/tmp/s"}, "unix:/tmp/s"),
    ],
)
def test_url(values, url):
    assert ServerConfig(**values).url == url


def test_port_zero_takes_a_free_one():
    sock, settings = listen(ServerConfig(port=0))
    with sock:
        assert settings.port == sock.getsockname()[1] != 0


def test_port_in_use_names_the_owner_at_once():
    """Two servers that start together: the second fails though the first has not served anything yet."""
    sock, settings = listen(ServerConfig(port=0))
    with (
        sock,
        pytest.raises(
            ConfigError, match=rf"port {settings.port} .* in use by process {os.getpid()} \("
        ),
    ):
        listen(settings)
    listen(settings)[0].close()


def test_owner_that_cannot_be_seen_is_left_out():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        assert owner_of(sock.getsockname()[1]) == ""


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "a" * 200])
def test_address_of_another_machine_is_refused(host):
    with pytest.raises(ConfigError, match="no address of this machine"):
        listen(ServerConfig(host=host, port=0))


def test_unix_socket_replaces_a_stale_one_only(tmp_path):
    settings = ServerConfig(uds=str(tmp_path / "s"))
    first, _ = listen(settings)
    with first, pytest.raises(ConfigError, match="in use by another server"):
        listen(settings)
    second, _ = listen(settings)  # its owner is gone
    second.close()
    plain = tmp_path / "file"
    plain.touch()
    with pytest.raises(ConfigError, match="is no socket"):
        listen(ServerConfig(uds=str(plain)))
    with pytest.raises(ConfigError, match="cannot listen on the Unix socket"):
        listen(ServerConfig(uds=str(tmp_path / "missing" / "s")))


@pytest.mark.integration
def test_help_loads_nothing_heavy():
    script = (
        "import sys; from tenonry.cli import make_parser; make_parser('serve')[0].format_help();"
        "print(sorted({'fastapi', 'uvicorn', 'starlette', 'torch', 'uvloop'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("text", ["0", "off", "'false'"])
def test_stat_loggers_are_left_out_however_statistics_are_switched_off(text, tmp_path, monkeypatch):
    path = tmp_path / "c.yaml"
    path.write_text(f"log_stats: {text}\n")
    assert parse("demo", "--config", str(path))[0].stat_loggers == ()
    monkeypatch.setenv("TENONRY_LOG_STATS", text)
    assert parse("demo")[0].stat_loggers == ()


# ------------------------------------------------------------------------------------- prefill engines
def test_prefill_engines_choose_connector_and_load_balancer():
    config, server = parse(
        "m", "-dp", "3", "--prefill-engines", "1", "--load-balancer", "round-robin"
    )
    assert config.kv_connector.name == "peer"
    assert config.load_balancer.name == "prefill-decode"
    assert config.load_balancer.options == {
        "prefill_engines": 1, "balancer": "round-robin", "options": {}
    }  # fmt: skip
    assert server.prefill_min_tokens == 256


def test_options_of_a_chosen_connector_and_load_balancer_stay():
    config, _ = parse(
        "m", "-dp", "2", "--prefill-engines", "1", "--load-balancer-option", "slack=3", "--kv-connector", "chain",
        "--kv-connector-option", "connectors=host,peer",
    )  # fmt: skip
    assert config.kv_connector.name == "chain"
    assert config.load_balancer.options["options"] == {"slack": 3}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prefill-engines", "1"), "leaves no engine that decodes; give --data-parallel-size 2 or more"),
        (("-dp", "2", "--prefill-engines", "2"), "give --data-parallel-size 3 or more"),
        (("-dp", "2", "--prefill-engines", "1", "--kv-connector", "host"), "needs the KV connector 'peer'"),
        (
            (
                "-dp", "2", "--prefill-engines", "1", "--kv-connector", "chain",
                "--kv-connector-option", "connectors=host",
            ),
            "chain with peer among its connectors",
        ),
        (
            ("-dp", "3", "--prefill-engines", "1", "--data-parallel-size-local", "2"),
            "leave out --data-parallel-size-local",
        ),
    ],
)  # fmt: skip
def test_prefill_engines_without_what_they_need_are_refused(words, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse("m", *words)


def test_keys_are_made_where_they_are_needed_and_the_user_gave_none(tmp_path):
    config, server = parse("m", "-dp", "2", "--prefill-engines", "1")
    with shared_keys(config, server) as keyed:
        path = Path(keyed.auth_key_file)
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert read_keys(keyed.auth_key_file)
    assert not path.parent.exists()
    given = config.replaced(auth_key_file=str(tmp_path / "mine"))
    for unchanged, settings in ((given, server), (config, ServerConfig())):
        with shared_keys(unchanged, settings) as same:
            assert same is unchanged
