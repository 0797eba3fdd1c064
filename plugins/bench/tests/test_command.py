from __future__ import annotations

import argparse
import json

import pytest

from tenonry.cli import make_parser
from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry_bench.__main__ import main
from tenonry_bench.command import VERBS, BenchCommand, load_verb
from tenonry_bench.settings import check_length, count, counts, engine_config, natural
from tenonry_commands.arguments import add_engine_arguments


def test_the_kernel_finds_the_command():
    parser, command = make_parser("bench")
    assert isinstance(command, BenchCommand)
    assert parser.parse_args([]).bench_verb is not None


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.slow
def test_every_verb_explains_itself(name, capsys):
    verb = load_verb(VERBS[name])
    assert isinstance(verb, Command)
    assert verb.summary
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_the_words_that_scripts_use_are_understood():
    words = "engine --streams 256 --prompt-len 32 --output-len 128 --runs 5 --json out.json"
    parser = argparse.ArgumentParser()
    BenchCommand().add_arguments(parser)
    args = parser.parse_args(words.split())
    assert args.streams == 256
    assert args.prompt_len == 32
    assert args.output_len == 128
    assert args.runs == 5
    assert args.json == "out.json"
    assert args.gc_freeze
    args = parser.parse_args(
        ["throughput", "--model", "m", "--workload", "w.json", "--json", "out.json"]
    )
    assert args.model == "m"
    assert args.workload == "w.json"
    assert args.json == "out.json"


@pytest.mark.parametrize(
    ("words", "message"),
    [(["engine", "--streams", "0"], "0 is below 1"), (["soon"], "invalid choice")],
)
def test_wrong_usage_ends_with_status_2(words, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_an_error_is_one_line_and_status_1(capsys, tmp_path):
    assert main(["throughput", "--workload", str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err.startswith("tenonry bench: workload file")


@pytest.mark.parametrize("text", ["-1", "x", "1.5"])
def test_numbers_of_flags_are_bounded(text):
    for kind in (count, natural, counts):
        with pytest.raises(argparse.ArgumentTypeError):
            kind(text)


def test_lists_of_numbers():
    assert counts("0,100") == [0, 100]


def engine_args(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_engine_arguments(parser, model_positional=False)
    return parser.parse_args(words)


def test_engine_defaults_give_way_to_flags(model_folder):
    config, facts = engine_config(
        engine_args("--model", str(model_folder)), worker="null", max_num_seqs=9
    )
    assert config.worker.name == "null"
    assert config.max_num_seqs == 9
    assert config.log_stats is False
    assert config.max_model_len == facts.max_model_len == 256
    words = (
        "--model",
        str(model_folder),
        "--max-num-seqs",
        "3",
        "--log-stats",
        "--max-model-len",
        "64",
    )
    config, _ = engine_config(engine_args(*words), worker="null", max_num_seqs=9)
    assert config.max_num_seqs == 3
    assert config.log_stats is True
    assert config.max_model_len == 64


def test_options_of_the_worker_reach_it(model_folder):
    config, _ = engine_config(
        engine_args(
            "--model", str(model_folder), "--worker-option", "step_ms=5", "--worker", "null"
        ),
        worker="null",
    )
    assert json.loads(config.worker.model_dump_json()) == {
        "name": "null",
        "options": {"step_ms": 5},
    }


def test_lengths_that_do_not_fit_are_refused_with_both_numbers(model_folder):
    config, _ = engine_config(engine_args("--model", str(model_folder)))
    check_length(config, 128, 128)
    with pytest.raises(ConfigError, match="need 257, but max_model_len is 256"):
        check_length(config, 128, 129)
