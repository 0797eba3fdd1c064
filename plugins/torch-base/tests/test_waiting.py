"""Torch's threads spin briefly for each other, unless the model is large or the environment overrides it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tenonry_torch_base.waiting import LARGE_BYTES, SPIN_TURNS, wait_briefly

LOADS_TORCH = """
import sys
from tenonry_torch_base.waiting import wait_briefly
assert "torch" not in sys.modules
wait_briefly(sys.argv[1])
import torch
"""


@pytest.fixture
def environment(monkeypatch):
    """Environment without the variables that OpenMP reads; restored after the test."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "restored after the test")
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("given", "turns"),
    [
        ({}, str(SPIN_TURNS)),
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
    ids=["nothing", "turns", "policy"],
)
def test_what_is_set_already_is_left_as_it_is(environment, tmp_path, given, turns):
    for name, value in given.items():
        environment.setenv(name, value)
    wait_briefly(str(tmp_path))
    assert os.environ.get("GOMP_SPINCOUNT") == turns


@pytest.mark.parametrize(
    ("size", "turns"), [(LARGE_BYTES, str(SPIN_TURNS)), (LARGE_BYTES + 1, None)]
)
def test_threads_of_a_large_model_wait_as_they_would(environment, tmp_path, size, turns):
    for name in ("model-1.safetensors", "model-2.safetensors", "notes.txt"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size // 2 + (size % 2 if "1" in name else 0))
    wait_briefly(str(tmp_path))
    assert os.environ.get("GOMP_SPINCOUNT") == turns


def test_threads_of_a_large_gguf_model_wait_as_they_would(environment, tmp_path):
    """Its folder holds a link to the file, wherever that is."""
    with (tmp_path / "stored").open("wb") as file:
        file.truncate(LARGE_BYTES + 1)
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "model.gguf").symlink_to(tmp_path / "stored")
    wait_briefly(str(folder))
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.integration
def test_openmp_reads_it_as_torch_is_loaded(tmp_path):
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    }
    done = subprocess.run(
        [sys.executable, "-c", LOADS_TORCH, str(tmp_path)],
        env={**environment, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    if "_OPENMP" not in done.stderr or "GOMP" not in done.stderr:
        pytest.skip("this torch computes with another OpenMP than GNU's")
    assert f"GOMP_SPINCOUNT = '{SPIN_TURNS}'" in done.stderr
