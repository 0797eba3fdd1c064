"""A soak of seconds: an engine of a worker that computes nothing is killed, and no token is lost."""

from __future__ import annotations

import argparse

import pytest

from tenonry_bench.soak import Ledger, Soak

WORDS = ["--worker", "null", "--worker-option", "step_ms=5", "--prompt-len", "4"]


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", ["kill", "stop"])
@pytest.mark.integration
def test_report(fault, bench, model_folder):
    words = [*WORDS, "--output-len", "100", "--streams", "4", "--seconds", "3", "--every", "1"]
    report, printed = bench("soak", "--model", model_folder, *words, "--faults", fault)
    ledger = report["ledger"]
    assert report["faults"][fault] >= 1
    assert ledger["tokens"] == 100 * ledger["streams"] > 0
    for name in ("diverged", "short", "long", "failed"):
        assert ledger[name] == 0
    assert report["after"]["processes"] == report["before"]["processes"]
    assert report["silence_max_s"] > 0
    assert "silence after a fault" in printed


def test_a_wrong_stream_is_counted():
    args = argparse.Namespace(
        streams=1, draw=1, prompt_len=1, output_len=3, faults=["kill"], seconds=1, every=1
    )
    soak = Soak(None, args, vocab_size=10)
    for got in ([1, 2], [1, 2, 3, 4], [1, 2, 4], [1, 2, 3]):
        soak._judge(got, [1, 2, 3])
    assert soak.ledger == Ledger(tokens=12, diverged=1, short=1, long=1, errors=[])
    assert not soak.ledger.is_clean
