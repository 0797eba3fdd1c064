"""`tenonry bench loading`: the compared figures, on files of a known size and a worker that reports its work."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tenonry_bench.__main__ import main
from tenonry_bench.loading import Run, Seconds, map_files, read_files, room_for

pytestmark = pytest.mark.integration

# A worker in a file of its own, as a third party would bring it.
PHASED = """
from tenonry_bench.null_worker import NullWorker


class Phased(NullWorker):
    rpc_methods = frozenset({*NullWorker.rpc_methods, "load_phases"})

    def load_phases(self):
        return {"look": (0.5, 0.25), "weights": (1.0, 0.5), "check": (8.0, 9.0)}
"""


@pytest.fixture
def stored(model_folder, tmp_path):
    """The model with 3 bytes short of three pages of weights, in two files."""
    folder = tmp_path / "stored"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((model_folder / name).read_bytes())
    (folder / "model-1.safetensors").write_bytes(bytes(range(256)) * 32)
    (folder / "model-2.safetensors").write_bytes(b"x" * 4093)
    return folder


def test_report(bench, stored, tmp_path):
    file = tmp_path / "phased.py"
    file.write_text(PHASED)
    words = ("--model", stored, "--worker", f"{file}:Phased", "--runs", "2")
    report, printed = bench("loading", *words)
    assert report["num_files"] == 2
    assert report["num_bytes"] == 3 * 4096 - 3
    assert list(report["phases"]) == ["look", "weights", "check"]
    assert report["phases"]["weights"]["cpu_s"]["median"] == 0.5
    for name in ("read", "mapped", "load"):
        assert report[name]["wall_s"]["n"] == 2, name
        assert report[name]["wall_s"]["min"] > 0, name
    assert report["ratio_wall"]["min"] > 1.5 / report["read"]["wall_s"]["max"]
    assert "load: check" in printed
    assert "aimed at: 1.2 at most" in printed


def test_a_worker_without_phases_counts_whole(bench, stored):
    report, printed = bench("loading", "--model", stored, "--worker", "null", "--runs", "1")
    assert report["phases"] == {}
    assert "load, all of it" in printed
    wall = report["mapped"]["wall_s"]["median"] + report["load"]["wall_s"]["median"]
    assert report["ratio_wall"]["median"] == pytest.approx(
        wall / report["read"]["wall_s"]["median"]
    )


def test_only_what_brings_the_model_in_counts():
    phases = {"look": Seconds(1.0, 0.5), "weights": Seconds(2.0, 1.5), "check": Seconds(50.0, 60.0)}
    run = Run(Seconds(4.0, 2.0), Seconds(1.0, 1.0), Seconds(53.0, 62.0), phases)
    assert run.ratio("wall") == 1.0
    assert run.ratio("cpu") == 1.5


def test_every_byte_is_read(stored):
    files = tuple(sorted(stored.glob("*.safetensors")))
    room = room_for(files)
    assert np.frombuffer(room, np.uint8).all(), "memory that is written before it is timed"
    read_files(files[:1], room)
    assert bytes(room) == files[0].read_bytes()
    read_files(files, room)
    assert bytes(room[:4093]) == files[1].read_bytes()
    map_files(files)


def test_a_model_without_weights_is_named(model_folder, tmp_path, capsys):
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "config.json").write_text((model_folder / "config.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({}))
    assert main(["loading", "--model", str(folder), "--runs", "1"]) == 1
    assert "weights must be *.safetensors" in capsys.readouterr().err
