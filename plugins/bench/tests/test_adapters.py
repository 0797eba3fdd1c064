"""The adapters that the benchmark makes are served, and its figures are those of steps."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest

from tenonry_bench.adapters import safetensors_of
from tenonry_bench.command import BenchCommand
from tenonry_hf_hub.headers import read_header


def test_a_file_has_what_was_given(tmp_path):
    file = tmp_path / "x.safetensors"
    file.write_bytes(safetensors_of({"a": np.ones((2, 3)), "b": np.zeros((4,))}))
    header = read_header(file)
    assert {name: tensor.shape for name, tensor in header.items()} == {"a": (2, 3), "b": (4,)}


@pytest.mark.integration
def test_a_small_run_reports_a_ratio(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    BenchCommand().add_arguments(parser)
    report = tmp_path / "report.json"
    words = ["adapters", "--runs", "1", "--rows", "2", "--adapters", "2", "--rank", "4"]
    args = parser.parse_args([*words, "--max-model-len", "128", "--json", str(report)])
    assert args.bench_verb.run(args) == 0
    found = json.loads(report.read_text())
    assert (found["rows"], found["adapters"], found["runs"]) == (2, 2, 1)
    # Differences of times so short may be negative on a busy machine.
    plain, adapted = found["plain_ms"]["median"], found["adapted_ms"]["median"]
    assert found["ratio"]["median"] == pytest.approx(adapted / plain)
    assert "ratio" in capsys.readouterr().out
