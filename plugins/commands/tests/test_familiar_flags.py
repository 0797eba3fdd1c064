"""Flags of vLLM's command line, for the verbs that run a model in the terminal; `serve` has its own tests of them."""

from __future__ import annotations

import pytest

from tenonry.cli import make_parser
from tenonry.errors import ConfigError
from tenonry_commands.arguments import config_from_arguments
from tenonry_commands.familiar_flags import INSTEAD

VERBS = {"generate": ["hello", "--model", "demo"], "chat": ["demo"]}


@pytest.mark.parametrize("verb", VERBS)
def test_a_flag_spelt_otherwise_sets_the_same_field(verb):
    parser, _ = make_parser(verb)
    args = parser.parse_args([*VERBS[verb], "--disable-log-stats", "--enable-log-requests"])
    config = config_from_arguments(args)
    assert config.log_stats is False
    assert config.log_requests is True


@pytest.mark.parametrize("verb", VERBS)
def test_a_flag_of_a_server_changes_nothing(verb):
    parser, _ = make_parser(verb)
    plain = config_from_arguments(parser.parse_args(VERBS[verb]))
    flagged = parser.parse_args([*VERBS[verb], "--disable-uvicorn-access-log"])
    assert config_from_arguments(flagged) == plain


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["trust_remote_code", "swap_space", "calculate_kv_scales"])
def test_a_flag_without_a_counterpart_says_what_to_do_instead(verb, name, capsys):
    parser, _ = make_parser(verb)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([*VERBS[verb], "--" + name.replace("_", "-"), "1"])
    assert ended.value.code == 2
    assert INSTEAD[name] in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("flag", ["-q", "--quantization"])
def test_a_short_flag_means_the_long_one(verb, flag):
    pytest.importorskip("tenonry_worker_torch")
    parser, _ = make_parser(verb)
    config = config_from_arguments(parser.parse_args([*VERBS[verb], flag, "int8"]))
    assert config.quantization == "int8"


@pytest.mark.parametrize("verb", VERBS)
def test_the_file_is_read_in_the_same_words(verb, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("swap_space: 4\n")
    parser, _ = make_parser(verb)
    with pytest.raises(ConfigError, match="swap_space: preempted requests are recomputed"):
        config_from_arguments(parser.parse_args([*VERBS[verb], "--config", str(file)]))


@pytest.mark.parametrize(
    ("given", "name"),
    [("half", "float16"), ("float", "float32"), ("torch.bfloat16", "bfloat16"), ("auto", "auto")],
)
@pytest.mark.parametrize("verb", VERBS)
def test_data_types_have_the_names_of_vllm_and_torch(verb, given, name, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(f"dtype: {given}\n")
    parser, _ = make_parser(verb)
    for words in (["--dtype", given], ["--config", str(file)]):
        config = config_from_arguments(parser.parse_args([*VERBS[verb], *words]))
        assert config.dtype == name
