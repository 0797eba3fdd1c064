"""Familiar flags: each has the same effect as elsewhere, or is rejected with an alternative."""

from __future__ import annotations

import re

import pytest

from tenonry.cli import make_parser
from tenonry.errors import ConfigError
from tenonry_commands.familiar_flags import INSTEAD, MEANS, SHORT
from tenonry_commands.familiar_values import DONE_ANYWAY, TRANSLATED
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


@pytest.mark.nightly_after(40)
@pytest.mark.parametrize("name", INSTEAD)
@pytest.mark.slow
def test_every_remedy_stands_alone(name, capsys):
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(SystemExit):
        parse(flag, "x")
    assert capsys.readouterr().err == (
        f"tenonry serve: error: {flag}: {INSTEAD[name]}; `tenonry serve --help` lists what there is\n"
    )


def setting(config, settings, name):
    value = getattr(config, name, getattr(settings, name, None))  # None: a plugin's, not given
    return getattr(value, "name", value)


OWNERS = {"mm_cache_mib": "tenonry_images", "grammar_backend": "tenonry_io_text"}
VALUES = [
    ("limit-mm-per-prompt", '{"image": 3, "video": 0}', "max_images", 3),
    ("limit-mm-per-prompt", "image=2,audio=0", "max_images", 2),
    ("limit-mm-per-prompt", '{"image": {"count": 5, "width": 512, "height": 512}}', "max_images", 5),
    ("mm-processor-cache-gb", "0.5", "mm_cache_mib", 512),
    ("mm-processor-cache-gb", "0", "mm_cache_mib", 0),
    ("guided-decoding-backend", "xgrammar", "grammar_backend", "xgrammar"),
    ("guided-decoding-backend", "guidance", "grammar_backend", "llguidance"),
    ("guided-decoding-backend", "auto", "grammar_backend", None),
    ("structured-outputs-config", '{"backend": "xgrammar", "disable_fallback": false}', "grammar_backend", "xgrammar"),
    ("structured-outputs-config", '{"reasoning_parser": "deepseek_r1"}', "reasoning_parser", "deepseek_r1"),
    ("task", "embed", "worker", "pooling"),
    ("task", "score", "worker", "pooling"),
    ("task", "generate", "worker", "auto"),
    ("runner", "pooling", "worker", "pooling"),
    ("runner", "auto", "worker", "auto"),
    ("convert", "embed", "worker", "pooling"),
    ("convert", "none", "worker", "auto"),
]  # fmt: skip


@pytest.mark.parametrize(("flag", "value", "name", "wanted"), VALUES)
def test_values_mean_settings_of_this_engine(flag, value, name, wanted, tmp_path):
    pytest.importorskip(OWNERS.get(name, "tenonry"))
    assert setting(*parse(f"--{flag}", value), name) == wanted
    path = tmp_path / "c.yaml"
    path.write_text(f"{flag}: {value}\n")
    assert setting(*parse("--config", str(path)), name) == wanted


def test_keys_may_stand_in_the_flag():
    pytest.importorskip(OWNERS["grammar_backend"])
    assert parse("--limit-mm-per-prompt.image", "4")[0].max_images == 4
    config, settings = parse(
        "--structured-outputs-config.backend", "guidance",
        "--structured-outputs-config.reasoning_parser", "qwen3",
    )  # fmt: skip
    assert (config.grammar_backend, settings.parser_names) == ("llguidance", "think")


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        (
            "limit-mm-per-prompt",
            '{"video": 1}',
            "images are the only inputs besides text; give video=0",
        ),
        ("limit-mm-per-prompt", '{"image": "x"}', "no number of inputs"),
        ("limit-mm-per-prompt", "{", "is no JSON"),
        ("limit-mm-per-prompt", "5", "key=value pairs"),
        ("mm-processor-cache-gb", "-1", "no size in GiB"),
        ("mm-processor-cache-gb", "nan", "no size in GiB"),
        ("guided-decoding-backend", "outlines", "auto, xgrammar, guidance, llguidance are"),
        ("structured-outputs-config", '{"backend": "outlines"}', "is not served"),
        ("structured-outputs-config", '{"disable_any_whitespace": true}', "white space"),
        ("structured-outputs-config", '{"zebra": 1}', "'zebra' is none of its keys"),
        ("task", "transcription", "is not served"),
        ("runner", "draft", "auto, generate and pooling are"),
        ("convert", "classify", "a head for scores comes with the model"),
    ],
)
def test_values_without_a_counterpart_say_what_there_is(flag, value, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        parse(f"--{flag}", value)
    assert message in capsys.readouterr().err
    path = tmp_path / "c.yaml"
    path.write_text(f"{flag}: {value if value != '{' else repr(value)}\n")
    with pytest.raises(ConfigError) as caught:
        parse("--config", str(path))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--worker", "torch", "--task", "embed"), "worker: torch\ntask: embed\n"),
        (("--max-images", "2", "--limit-mm-per-prompt", "image=3"), "limit_mm_per_prompt: {image: 3}\nmax_images: 2\n"),
    ],
)  # fmt: skip
def test_two_settings_of_one_thing_are_refused(words, text, tmp_path, capsys):
    with pytest.raises(SystemExit):
        parse(*words)
    assert "given otherwise" in capsys.readouterr().err
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="given otherwise"):
        parse("--config", str(path))


@pytest.mark.parametrize(
    "words",
    [
        ("--task", "embed", "--worker", "torch"),
        ("--limit-mm-per-prompt", "image=3", "--max-images", "2"),
    ],
)
def test_two_settings_of_one_thing_are_refused_in_any_order(words):
    with pytest.raises(ConfigError, match="given otherwise"):
        parse(*words)
    assert parse("--task", "embed", "--worker", "pooling")[0].worker.name == "pooling"


def test_settings_that_a_command_lacks_are_refused(capsys):
    parser, _ = make_parser("generate")
    with pytest.raises(SystemExit):
        parser.parse_args(["demo", "--structured-outputs-config", '{"reasoning_parser": "qwen3"}'])
    assert "--reasoning-parser, which this command lacks" in capsys.readouterr().err


@pytest.mark.parametrize("name", DONE_ANYWAY)
@pytest.mark.slow
def test_values_that_ask_for_what_is_done_anyway_are_taken(name, tmp_path):
    for value in DONE_ANYWAY[name]:
        if isinstance(value, str):
            parse(f"--{name.replace('_', '-')}", value)
        path = tmp_path / "c.yaml"
        path.write_text(f"{name}: {value!r}\n")
        parse("--config", str(path))


def test_what_is_not_here_says_so_in_a_file_too(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("model: demo\ntrust-remote-code: true\n")
    with pytest.raises(ConfigError, match=r"trust_remote_code: .* never run"):
        parse("--config", str(path))


def test_remedies_name_flags_that_exist():
    pytest.importorskip("tenonry_worker_torch")
    parser, _ = make_parser("serve")
    vars(parser)["part_flags"].add()
    shown = parser.format_help()
    named = {flag for remedy in INSTEAD.values() for flag in re.findall(r"--[a-z-]+", remedy)}
    assert {flag for flag in named if flag not in shown} == set()


def test_they_are_no_flags_of_ours():
    parser, _ = make_parser("serve")
    shown = parser.format_help()
    for name in [*INSTEAD, *MEANS, *TRANSLATED]:
        assert f"--{name.replace('_', '-')} " not in shown, name
    assert {name for name in SHORT.values() if name not in INSTEAD} == set()
