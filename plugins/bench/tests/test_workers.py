"""Workers interleaved on one model: the definition of decoding time, the ratio, and rejected arguments."""

from __future__ import annotations

import json

import pytest

from tenonry.errors import ConfigError
from tenonry_bench.__main__ import main
from tenonry_bench.tiny_models import SHAPES, write_shape
from tenonry_bench.workers import Seconds, Turn, figures, prompt_lengths, ratio

OTHER = "tenonry_bench.null_worker:NullWorker"


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def turn(short, long, requests=4):
    return Turn(Seconds(short, short / 2), Seconds(long, long / 2), [[7]] * requests)


@pytest.mark.integration
def test_report_of_two_workers(bench, model_folder):
    words = ("--requests", "5", "--prompt-len", "3-4", "--out-len", "6", "--runs", "2")
    report, printed = bench(
        "workers", "--workers", f"null,{OTHER}", "--model", model_folder, *words
    )
    assert [one["worker"] for one in report["workers"]] == ["null", OTHER]
    for one in report["workers"]:
        for name in ("decode_tok_s", "decode_tok_cpu_s", "whole_tok_s"):
            assert 0 < one[name]["min"] <= one[name]["median"] <= one[name]["max"]
    assert report["ratio_cpu"].keys() == report["ratio_wall"].keys() == {OTHER}
    assert report["same"]
    assert "tokens identical" in printed
    assert report["settings"]["max_num_seqs"] == 5


def test_decoding_is_what_a_long_answer_takes_more_than_a_short_one():
    runs = [{"a": turn(1.0, 3.0), "b": turn(4.0, 12.0)}, {"a": turn(1.0, 5.0), "b": turn(1.0, 9.0)}]
    assert ratio(runs, "a", "b", "wall").median == 3.0
    found = figures("a", [run["a"] for run in runs], out_len=10)
    assert (found.decode_tok_s.min, found.decode_tok_s.max) == (8.0, 16.0)
    assert found.decode_tok_cpu_s.max == 32.0
    assert found.whole_tok_s.max == pytest.approx(40 / 3)


def test_prompt_lengths():
    assert prompt_lengths("16", 3) == [16, 16, 16]
    assert prompt_lengths("8-10", 5) == [8, 9, 10, 8, 9]


@pytest.mark.parametrize("text", ["0", "9-8", "eight", "-4", "4-x"])
def test_lengths_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match="--prompt-len"):
        prompt_lengths(text, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out-len", "2"), "--out-len 2 leaves nothing to decode"),
        (("--worker", "null"), "--worker is set by this benchmark; give --workers instead"),
        (("--shape", "tiny-qwen3-next", "--model", "x"), "--model is set by this benchmark"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, message, capsys):
    assert main(["workers", *words]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_shape_is_a_configuration(name, tmp_path):
    write_shape(name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"]
    assert config["model_type"]


def test_an_unknown_shape_names_those_that_there_are(tmp_path):
    with pytest.raises(ConfigError, match="tiny-qwen3-next"):
        write_shape("huge", tmp_path)
