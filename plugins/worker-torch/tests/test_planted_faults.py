"""Mistakes that one layer of a deep model has, or the head: none of them is served."""

from __future__ import annotations

import planted_faults
import pytest
import torch
import worker_families

from tenonry.errors import ModelError
from tenonry_torch_base.buffers import HostBuffers
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend

SERVED = "served by fused layers"
OWN_CODE = "served by the model's own code"


@pytest.fixture(autouse=True)
def deep_models(monkeypatch):
    for name, model in planted_faults.MODELS.items():
        monkeypatch.setitem(worker_families.FAMILIES, name, model)


def verdict(family, dtype):
    """Outcome for a model: how it is served, or why it is not."""
    try:
        loaded = build(
            worker_families.build(family, seed=0, dtype=dtype),
            BuildPlan(
                CpuBackend,
                HostBuffers(torch.device("cpu"), 1),
                max_model_len=64,
                fuse=True,
                skip_check=False,
                window_groups=True,
            ),
        )
    except ModelError as error:
        return str(error)
    return SERVED if isinstance(loaded.forward, FusedForward) else OWN_CODE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", planted_faults.MODELS)
def test_correct_deep_model_runs_fused_layers(family, dtype):
    assert verdict(family, dtype) == SERVED


@pytest.mark.parametrize("fault", planted_faults.FAULTS)
@pytest.mark.slow
def test_no_planted_mistake_is_served(fault, monkeypatch):
    family, plant = planted_faults.FAULTS[fault]
    plant(monkeypatch)
    found = verdict(family, torch.float32)
    assert found == OWN_CODE or "ForCausalLM fails the self check" in found
