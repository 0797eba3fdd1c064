"""A model with quantised weights through the worker's own checks: prints a JSON object, name → bits of its layers."""

from __future__ import annotations

import json

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tenonry_quantisations.int4 import Int4
from tenonry_quantisations.int8 import Int8
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.buffers import HostBuffers
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.points import DEVICE_PASSES, TRITON

CPU = torch.device("cpu")


def bits(quantisation):
    """Bits of each quantised layer. The worker compares the model with its floats."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval().requires_grad_(False)
    plan = BuildPlan(
        SdpaBackend, HostBuffers(CPU, 1), max_model_len=32, fuse=True, skip_check=False, quantisation=quantisation
    )  # fmt: skip
    model = build(module, plan)
    return [layer.bits for layer in model.quantised_layers]


if __name__ == "__main__":
    torch.set_num_threads(1)
    DEVICE_PASSES["cpu"] = {"triton-matrices": TRITON}
    print(json.dumps({kind.name: bits(kind(None)) for kind in (Int4, Int8)}))
