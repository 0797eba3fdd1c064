"""Streams alongside busy processes, on the worker that computes nothing."""

from __future__ import annotations

import psutil
import pytest

from tenonry_bench.__main__ import main
from tenonry_bench.neighbours import BUSY, busy

pytestmark = pytest.mark.integration

WORDS = [
    "--worker",
    "null",
    "--worker-option",
    "step_ms=1",
    "--prompt-len",
    "4",
    "--output-len",
    "8",
]


def busy_below() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if BUSY in each.cmdline()]


def test_report(bench, model_folder):
    words = [*WORDS, "--runs", "2", "--neighbours", "0,1", "--streams", "1,3"]
    report, printed = bench("neighbours", "--model", model_folder, *words)
    cases = [(result["streams"], result["neighbours"]) for result in report["results"]]
    assert cases == [(1, 0), (1, 1), (3, 0), (3, 1)]
    for result in report["results"]:
        for name in ("tok_s", "tpot_ms", "ttft_ms", "slower"):
            figure = result[name]
            assert 0 < figure["min"] <= figure["median"] <= figure["max"], name
            assert figure["n"] == 2
        if result["neighbours"] == 0:
            assert result["slower"]["min"] == result["slower"]["max"] == 1
    assert "busy processes" in printed
    assert not busy_below()


def test_neighbours_compute_as_long_as_they_are_wanted():
    with busy(2):
        neighbours = busy_below()
        assert len(neighbours) == 2
        before = [each.cpu_times().user for each in neighbours]
        while any(
            each.cpu_times().user <= then for each, then in zip(neighbours, before, strict=True)
        ):
            pass
    assert not any(each.is_running() for each in neighbours)


def test_they_end_with_an_error_too():
    with pytest.raises(RuntimeError, match="planted"), busy(1):
        raise RuntimeError("planted")
    assert not busy_below()


def test_no_streams_are_refused(model_folder, capsys):
    words = ["neighbours", *WORDS, "--model", str(model_folder), "--streams", "1,0"]
    assert main(words) != 0
    assert "--streams 0 measures nothing" in capsys.readouterr().err
