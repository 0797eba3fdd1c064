"""Flags that people type from memory: each does what it says elsewhere, or is refused with what to do instead."""

from __future__ import annotations

import re

import pytest

from tenonry.cli import make_parser
from tenonry.errors import ConfigError
from tenonry_commands.familiar_flags import INSTEAD, MEANS, SHORT
from tenonry_openai_server.settings import configs_from_arguments


def parse(*words):
    parser, _ = make_parser("serve")
    return configs_from_arguments(parser.parse_args(["demo", *words]))


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--enable-log-requests"], "log_requests", True),
        (["--disable-log-requests"], "log_requests", False),
        (["--no-enable-log-requests"], "log_requests", False),
        (["--disable-log-stats"], "log_stats", False),
        (["--disable-uvicorn-access-log"], "disable_access_log", True),
        (["--tool-call-parser=hermes", "--reasoning-parser=deepseek_r1"], "parser_names", "think+hermes"),
        (["--enable-auto-tool-choice"], "parser_names", "auto"),
        (["--tool-call-parser", "llama3_json"], "parser_names", "llama"),
        (["-asc", "3"], "api_server_count", 3),
        (["--allowed-origins", '["http://a.test", "http://b.test"]'], "allowed_origins", ("http://a.test", "http://b.test")),
        (["--allowed-origins", "*", "--allowed-origins", '["x"]'], "allowed_origins", ("*", "x")),
    ],
)  # fmt: skip
def test_they_mean_what_they_mean_elsewhere(words, name, value):
    config, settings = parse(*words)
    assert getattr(config if hasattr(config, name) else settings, name) == value


@pytest.mark.parametrize("text", ["[", "[a]", "[5]"])
def test_what_is_no_list_of_origins_is_refused(text):
    with pytest.raises(ConfigError, match="allowed_origins"):
        parse("--allowed-origins", text)


@pytest.mark.parametrize("value", ["5", "{a: b}"])
def test_origins_of_another_kind_are_refused(value, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(f"allowed_origins: {value}\n")
    with pytest.raises(ConfigError, match="allowed_origins"):
        parse("--config", str(path))


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("disable-log-requests: true", "log_requests", False),
        ("enable_log_requests: true", "log_requests", True),
        ("disable-log-stats: false", "log_stats", True),
        ("disable-log-stats: true", "log_stats", False),
        ("disable_uvicorn_access_log: true", "disable_access_log", True),
    ],
)
def test_and_in_a_file(text, name, value, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    config, settings = parse("--config", str(path))
    assert getattr(config if hasattr(config, name) else settings, name) is value


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["--trust-remote-code"], "never run"),
        (["--swap-space", "4"], "recomputed"),
        (["--uvicorn-log-level=info"], "TENONRY_LOG_LEVEL"),
        (["-O3"], "--enforce-eager"),
        (["--kv-transfer-config", "{}"], "--kv-connector NAME"),
        (["--download-dir", "x"], "HF_HOME"),
        (
            ["--long-prefill-token-threshold", "512"],
            "--scheduler-option long_prefill_token_threshold=N",
        ),
        (["--worker-cls", "my.Worker"], "--worker module:Class"),
    ],
)
def test_what_is_not_here_says_what_to_do_instead(words, instead, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tenonry serve: error: {words[0].partition('=')[0][:2]}")
    assert instead in error
    assert "did you mean" not in error


@pytest.mark.parametrize("name", INSTEAD)
def test_every_remedy_stands_alone(name, capsys):
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(SystemExit):
        parse(flag, "x")
    assert capsys.readouterr().err == (
        f"tenonry serve: error: {flag}: {INSTEAD[name]}; `tenonry serve --help` lists what there is\n"
    )


def test_what_is_not_here_says_so_in_a_file_too(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("model: demo\ntrust-remote-code: true\n")
    with pytest.raises(ConfigError, match=r"trust_remote_code: .* never run"):
        parse("--config", str(path))


def test_remedies_name_flags_that_exist():
    parser, _ = make_parser("serve")
    shown = parser.format_help()
    named = {flag for remedy in INSTEAD.values() for flag in re.findall(r"--[a-z-]+", remedy)}
    assert {flag for flag in named if flag not in shown} == set()


def test_they_are_no_flags_of_ours():
    parser, _ = make_parser("serve")
    shown = parser.format_help()
    for name in [*INSTEAD, *MEANS]:
        assert f"--{name.replace('_', '-')} " not in shown, name
    assert {name for name in SHORT.values() if name not in INSTEAD} == set()
