"""Where the kernels cannot run: each reason with what to do about it. Needs no Triton."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest
import torch

from tenonry_attention_triton.backend import TritonBackend

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def machine(monkeypatch):
    """A machine with a version of Triton, or none, and a GPU of a compute capability."""

    def make(version, card=(9, 0)):
        def version_of(name):
            if version == "unnamed":
                raise importlib.metadata.PackageNotFoundError(name)
            return version

        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: version and object())
        monkeypatch.setattr(importlib.metadata, "version", version_of)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: card)

    return make


def reason(device=CUDA):
    return TritonBackend.refusal((), torch.bfloat16, device)


def test_without_triton(machine):
    machine(None)
    assert (
        reason()
        == "there is no Triton, which torch for CUDA brings; use sdpa, or pip install triton"
    )


def test_an_old_triton(machine):
    machine("3.4.0")
    assert (
        reason()
        == "it needs Triton 3.5, and 3.4 is installed; use sdpa, or pip install --upgrade torch"
    )


@pytest.mark.parametrize("version", ["3.5.0", "3.10.1+git1", "4.0.0", "unnamed"])
def test_newer_ones_are_used(machine, version):
    machine(version)
    assert reason() is None


def test_an_old_gpu(machine):
    machine("3.6.0", card=(7, 5))
    assert (
        reason()
        == "its kernels need a GPU of compute capability 8.0, and this one has 7.5; use sdpa"
    )


def test_a_cpu(machine):
    machine("3.6.0")
    assert reason(CPU) == "its kernels run on CUDA, and the device is 'cpu'; use sdpa"
