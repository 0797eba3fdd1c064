"""The whole of `tenonry bench models` on a worker that computes nothing, compared with peers of ten lines."""

from __future__ import annotations

import pytest

from tenonry_bench.__main__ import main

NULL = ("--engine-args", "--worker null --max-model-len 64")


@pytest.mark.nightly
def test_report_table_and_plot(bench, micro_models, workload_file, peers, tmp_path):
    plot = tmp_path / "plots" / "models.svg"
    words = ["--models", micro_models, "--name", "micro", "--workload", workload_file]
    more = ["--runs", "2", "--plot", plot, "--peers", "steady,broken,absent", *NULL]
    report, printed = bench("models", *words, *more)
    told = [(result["workload"], result["figure"]) for result in report["results"]]
    assert told == [
        ("W1", "tok/s"),
        ("W3", "tok/s with prompts"),
        ("W3", "first token p50, ms"),
        ("W5", "first token of a new process, s"),
        ("W6", "tok/s"),
        ("W6", "first token p50, ms"),
        ("W6", "server ready, s"),
    ]
    for result in report["results"]:
        ours = result["engines"]["tenonry"]
        assert 0 < ours["min"] <= ours["median"] <= ours["max"]
        served = result["workload"] == "W6"
        assert set(result["engines"]) == ({"tenonry"} if served else {"tenonry", "steady"})
    first = report["results"][0]
    assert first["engines"]["steady"]["median"] == 3 * 4 / 0.5
    assert first["ratios"]["steady"]["n"] == 2
    assert report["engines"]["steady"] == "1.2.3"
    assert report["memory_gib"]["micro"]["tenonry"] > 0
    assert report["pace_after"]["loop_ms"] > 0
    assert any("absent is not installed" in note for note in report["notes"])
    assert any("broken failed on micro: the peer has no such model" in n for n in report["notes"])
    assert "over steady" in printed
    assert "over broken" not in printed
    assert "before: machine:" in printed
    assert "after: machine:" in printed
    assert plot.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--peers", "vllm,gpt"], "'gpt' is none of vllm, llama.cpp, transformers"),
        (["--peer-python", "vllm=/no/such/python"], "there is no file '/no/such/python'"),
        (["--peer-python", "gpt=/bin/sh"], "'gpt' is none of"),
        (["--name", "huge"], "neither a folder with a config.json nor one of tiny, small"),
        (["--workloads", "W9"], "no workload is called 'W9'"),
    ],
)
def test_bad_words_are_refused_before_anything_runs(words, message, tmp_path, capsys):
    assert main(["models", "--models", str(tmp_path), "--peers", "none", *words]) == 1
    assert message in capsys.readouterr().err
