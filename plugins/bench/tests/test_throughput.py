from __future__ import annotations

import json
import os

import pytest

from tenonry.errors import TenonryError
from tenonry.outputs import CompletionOutput, RequestOutput
from tenonry_bench.__main__ import main
from tenonry_bench.throughput import check_output, set_threads

WORKLOADS = {
    "seed": 1,
    "token_range": [300, 8000],
    "workloads": {
        "W1": {"kind": "offline", "requests": 5, "prompt_len": 6, "out_len": 4},
        "W4": {
            "kind": "offline",
            "requests": 4,
            "prompt_len": 40,
            "shared_prefix_len": 32,
            "out_len": 2,
        },
        "W6": {"kind": "served", "requests": 4, "prompt_len": 8, "out_len": 2, "concurrency": 2},
    },
}


@pytest.fixture
def workload_file(tmp_path):
    path = tmp_path / "workloads.json"
    path.write_text(json.dumps(WORKLOADS))
    return path


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.integration
def test_report(bench, model_folder, workload_file):
    words = ("--worker", "null", "--workload", workload_file, "--runs", "2")
    report, printed = bench("throughput", "--model", model_folder, *words)
    assert [result["workload"] for result in report["results"]] == ["W1", "W4"]
    for result in report["results"]:
        for name in (
            "output_tok_s",
            "total_tok_s",
            "wall_s",
            "req_s",
            "ttft_p50_ms",
            "ttft_p99_ms",
            "tpot_p99_ms",
        ):
            figure = result[name]
            assert 0 < figure["min"] <= figure["median"] <= figure["max"], name
        assert result["total_tok_s"]["median"] > result["output_tok_s"]["median"]
        assert 0 < result["pss_after_gib"] <= result["peak_rss_gib"]
        assert result["load_s"] > 0
    assert (
        report["results"][1]["cached_tokens"]["min"] >= 3 * 32
    )  # all but the first share 32 tokens
    assert report["args"]["model"] == str(model_folder)
    assert report["machine"]["versions"]["tenonry"]
    assert "| W4 " in printed


@pytest.mark.integration
def test_workloads_by_name(bench, model_folder, workload_file):
    words = ("--worker", "null", "--workload", workload_file, "--runs", "1", "--name", "W6")
    report, _ = bench("throughput", "--model", model_folder, *words)
    assert [result["workload"] for result in report["results"]] == ["W6"]


@pytest.mark.integration
def test_an_unknown_name_is_refused(model_folder, workload_file, capsys):
    words = [
        "throughput",
        "--worker",
        "null",
        "--model",
        str(model_folder),
        "--workload",
        str(workload_file),
    ]
    assert main([*words, "--name", "W7"]) == 1
    assert "no workload is called 'W7'" in capsys.readouterr().err


@pytest.mark.integration
def test_a_workload_that_does_not_fit_is_refused(model_folder, capsys):
    assert (
        main(["throughput", "--worker", "null", "--model", str(model_folder), "--name", "W3"]) == 1
    )
    assert "max_model_len is 256" in capsys.readouterr().err


def test_a_request_cut_short_is_an_error():
    def make(ids, error=None):
        return RequestOutput("7", None, [1], [CompletionOutput(0, "", ids)], True, error=error)

    check_output(make([1, 2]), 2)
    with pytest.raises(TenonryError, match="request 7 produced 1 of 2 tokens: NaN logits"):
        check_output(make([1], "NaN logits"), 2)


def test_threads_are_decided_by_flag_then_environment_then_cores(monkeypatch):
    set_threads(None)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    set_threads(3)
    assert os.environ["OMP_NUM_THREADS"] == "3"
    monkeypatch.delenv("OMP_NUM_THREADS")
    set_threads(None)
    assert int(os.environ["OMP_NUM_THREADS"]) >= 1
