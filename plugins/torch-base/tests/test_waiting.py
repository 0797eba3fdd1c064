"""Torch's threads wait for each other briefly, unless the environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tenonry_torch_base.imports import importing
from tenonry_torch_base.waiting import SPIN_TURNS

LOADS_TORCH = """
import sys
from tenonry_torch_base.imports import importing
assert "torch" not in sys.modules
with importing():
    import torch
"""


@pytest.mark.parametrize(
    ("given", "turns"),
    [
        ({}, str(SPIN_TURNS)),
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
    ids=["nothing", "turns", "policy"],
)
def test_what_is_set_already_is_left_as_it_is(monkeypatch, given, turns):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "restored after the test")
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with importing():
        found = os.environ.get("GOMP_SPINCOUNT")
    assert found == turns


def test_openmp_reads_it_as_torch_is_loaded():
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    }
    done = subprocess.run(
        [sys.executable, "-c", LOADS_TORCH],
        env={**environment, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    if "_OPENMP" not in done.stderr or "GOMP" not in done.stderr:
        pytest.skip("this torch computes with another OpenMP than GNU's")
    assert f"GOMP_SPINCOUNT = '{SPIN_TURNS}'" in done.stderr
