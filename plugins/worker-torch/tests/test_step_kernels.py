"""Step kernels of the settings: found, none, or refused by name."""

from __future__ import annotations

import logging

import pytest
import torch

from tenonry.errors import ConfigError, PluginNotFound
from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_kernels_cpu.library import library
from tenonry_worker_torch.step_kernels import find_kernels

CPU = torch.device("cpu")
needs_library = pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built")


@needs_library
def test_installed_kernels_are_found_and_reported():
    resolved = {}
    found = find_kernels(None, CPU, resolved)
    assert isinstance(found.kernels, CpuKernels)
    assert not found.is_asked_for
    assert resolved["step_kernels"].startswith("cpu (tenonry-kernels-cpu ")


def test_none_and_other_devices_have_none():
    assert find_kernels("none", CPU, {}) is None
    assert find_kernels(None, torch.device("cuda"), {}) is None


def test_kernels_of_another_device_are_refused_before_they_get_its_pointers():
    resolved = {}
    with pytest.raises(ConfigError, match=r"memory of device cpu, and the model is on device cuda"):
        find_kernels("cpu", torch.device("cuda"), resolved)
    assert "step_kernels" not in resolved


def test_unknown_name_is_refused_with_what_there_is():
    with pytest.raises(PluginNotFound, match="nothing-such"):
        find_kernels("nothing-such", CPU, {})


def test_damaged_library_is_named_once_and_torch_computes(tmp_path, monkeypatch, caplog):
    path = tmp_path / "libkernels.so"
    path.write_bytes(b"not a library")
    monkeypatch.setattr("tenonry_kernels_cpu.kernels.library", lambda: library(path))
    resolved = {}
    assert find_kernels(None, CPU, resolved) is None
    assert not resolved
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"using torch alone: {path} does not load" in caplog.text
    with pytest.raises(ConfigError, match=r"step kernels 'cpu' cannot be used: .*does not load"):
        find_kernels("cpu", CPU, {})


def test_nothing_installed_is_said_with_what_to_type(monkeypatch, caplog):
    def missing(*_, **__):
        raise PluginNotFound("no step kernels")

    monkeypatch.setattr("tenonry_worker_torch.step_kernels.resolve_class", missing)
    with caplog.at_level(logging.INFO, "tenonry.worker"):
        assert find_kernels(None, CPU, {}) is None
    assert "pip install tenonry-kernels-cpu" in caplog.text
