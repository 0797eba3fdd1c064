"""Models that the kernels between matrix products do not compute: the reason, in a line. Needs no Triton."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tenonry_attention_triton.backend import TritonBackend
from tenonry_attention_triton.layers import TritonLayers
from tenonry_torch_base.attention.base import LayerSpec
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_worker_torch.fuse.block import FusedAttention, FusedMLP
from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.fuse.layer import FusedLayer
from tenonry_worker_torch.fuse.norm import RMSNorm
from tenonry_worker_torch.passes.order import device_passes

CPU = torch.device("cpu")


def spec(**more):
    return LayerSpec(
        name="layer", index=0, num_heads=2, num_kv_heads=1, key_size=8, value_size=8, scaling=0.3, **more
    )  # fmt: skip


def norm():
    return RMSNorm(torch.ones(16), 16, 1e-6)


def layer(*, of=None, activation=None, norms=None, mlp=None, gate_order=None):
    attention = FusedAttention(None, None, of or spec(), None, None, gate_order)
    feed_forward = mlp or FusedMLP(None, None, activation or nn.SiLU())
    return FusedLayer(attention, feed_forward, norms or [norm(), None, norm(), None], "")


def model(kind=TritonBackend, layers=None, forward=None, kinds=("",), mixers=()):
    fused = FusedForward(None, layers or [layer()], dict.fromkeys(kinds), None, None)
    backend = kind([spec()], torch.float32, CPU)
    return SimpleNamespace(backend=backend, forward=forward or fused, mixers=list(mixers))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"kind": SdpaBackend}, "attention backend 'triton', and this one is 'sdpa'"),
        ({"forward": object()}, "runs its own code"),
        ({"mixers": [object()]}, "layers with state"),
        ({"kinds": ("full", "sliding")}, "rotate differently"),
        ({"layers": [layer(), layer(activation=nn.GELU())]}, "layer 1 is of another kind"),
        ({"layers": [layer(norms=[None, norm(), None, norm()])]}, "layer 0 is of another kind"),
        ({"layers": [layer(mlp=nn.Identity())]}, "layer 0 is of another kind"),
        ({"layers": [layer(gate_order=torch.arange(4))]}, "layer 0 is of another kind"),
        ({"layers": [layer(of=spec(indexed=True))]}, "layer 0 is of another kind"),
    ],
)
def test_another_model_is_left_to_torch_with_the_reason(caplog, given, reason):
    with caplog.at_level(logging.INFO, "tenonry.worker"):
        assert reason in TritonLayers().why_not(model(**given), None)
    (line,) = [each.message for each in caplog.records]
    assert line.startswith("Using torch instead of Triton kernels between matrix products: ")


def test_a_model_of_the_llama_kind_is_not():
    assert TritonLayers().why_not(model(), None) is None


def test_the_pass_comes_before_graphs():
    names = [each.name for each in device_passes("cuda")]
    assert names == ["triton-matrices", "triton-layers", "triton-truncation", "graphs"]
