"""The attention backend without a setting: kernels on CUDA, or the reference and a line with the reason."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from tenonry.config import EngineConfig
from tenonry.errors import PluginNotFound
from tenonry_torch_base.attention import default
from tenonry_torch_base.attention.sdpa import SdpaBackend

CUDA = torch.device("cuda", 0)


class Kernels(SdpaBackend):
    name = "triton"
    reason = None

    @classmethod
    def refusal(cls, layers, dtype, device):
        return cls.reason


@pytest.fixture
def installed(monkeypatch):
    """Set the backends of the environment by name."""

    def set_backends(**backends):
        def resolve_class(point, name, resolved):
            if name not in backends:
                raise PluginNotFound(f"no attention backend '{name}'")
            resolved[point.kind] = name
            return backends[name]

        monkeypatch.setattr(default, "resolve_class", resolve_class)

    default.report_slower.cache_clear()
    return set_backends


def test_cuda_has_the_backend_with_kernels(installed, caplog):
    installed(triton=Kernels, sdpa=SdpaBackend)
    resolved = {}
    assert default.backend_of(CUDA, resolved) is Kernels
    assert resolved == {"attention_backend": "triton"}
    assert not caplog.records


@pytest.mark.parametrize(
    ("backends", "reason", "line"),
    [
        ({}, None, "'sdpa', pip install tenonry-attention-triton for the faster one"),
        ({"triton": Kernels}, "there is no Triton; use sdpa", "'sdpa', not 'triton': there is no Triton"),
    ],
)  # fmt: skip
def test_without_it_the_reference_runs_and_one_line_has_the_reason(
    installed, caplog, monkeypatch, backends, reason, line
):
    monkeypatch.setattr(Kernels, "reason", reason)
    installed(sdpa=SdpaBackend, **backends)
    resolved = {}
    with caplog.at_level(logging.WARNING, "tenonry.worker"):
        for _ in range(2):
            assert default.backend_of(CUDA, resolved) is SdpaBackend
    assert resolved == {"attention_backend": "sdpa"}
    assert [record.message for record in caplog.records] == [f"Attention backend {line}"]


def test_kernels_that_fail_are_replaced_unless_they_were_named(installed, caplog):
    installed(triton=Kernels, sdpa=SdpaBackend)
    error = RuntimeError("no ptxas")

    def replaced(backend, **settings):
        context = SimpleNamespace(config=EngineConfig(model="m", **settings))
        return default.slower_backend(backend, error, context, {})

    with caplog.at_level(logging.WARNING, "tenonry.worker"):
        assert replaced(Kernels) is SdpaBackend
    assert [record.message for record in caplog.records] == [
        "Attention backend 'sdpa', not 'triton', which failed: RuntimeError: no ptxas"
    ]
    for backend, settings in (
        (SdpaBackend, {}),
        (Kernels, {"tensor_parallel_size": 2}),
        (Kernels, {"worker": {"name": "torch", "options": {}}, "attention_backend": "triton"}),
    ):
        with pytest.raises(RuntimeError, match="no ptxas"):
            replaced(backend, **settings)


def test_the_cpu_has_its_own(installed):
    installed(cpu=Kernels, triton=SdpaBackend)
    assert default.backend_of(torch.device("cpu"), {}) is Kernels
