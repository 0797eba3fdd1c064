"""Choice table: which parts of a model have which kernel, for float, quantised and GGUF weights."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from gguf import GGMLQuantizationType

from tenonry_demo_model import model_path
from tenonry_hf_hub.gguf import folder_of
from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_kernels_cpu.library import instruction_sets
from tenonry_quantisations.gguf import Gguf
from tenonry_quantisations.int4 import Int4
from tenonry_testkit import gguf_files
from tenonry_torch_base.buffers import HostBuffers
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.loading.load import load_model, look
from tenonry_worker_torch.step_kernels import FoundKernels
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend

CPU = torch.device("cpu")
HAS_AVX2 = CpuKernels.refusal() is None and "avx2" in instruction_sets()
pytestmark = [
    pytest.mark.skipif(not HAS_AVX2, reason="no library was built, or no AVX2"),
    pytest.mark.slow,  # whole models
]

PLACES = (
    *("stack", "prompts", "rounds", "head", "norm", "kernel"),
    *("before_attention", "after_attention", "before_mlp", "after_mlp"),
    *("attention", "first_half_kernel", "feed_forward_kernel"),
    *("qkv", "out", "turn_kernel", "gate_up", "down", "gate_kernel"),
)


def loaded(path, dtype):
    return load_model(
        path,
        load_format="auto",
        dtype=dtype,
        device=CPU,
        seed=0,
        found=look(path, load_format="auto"),
        kernels=CpuKernels("avx2"),
    )


def model_of(kind, folder, patch):
    """Model with kernels that were selected by name, so that no timing decides."""
    patch.setattr("tenonry_worker_torch_cpu.packing.widened.can_pack", lambda *_: False)
    patch.setenv("XDG_CACHE_HOME", str(folder))
    quantisation = None
    if kind == "gguf":
        file = gguf_files.write(
            folder / "a.gguf", kind=GGMLQuantizationType.Q4_1, tied=True, tokenizer=False
        )
        path, dtype = str(folder_of(file)), "bfloat16"
        quantisation = Gguf({"quant_method": "gguf"})
    else:
        path, dtype = model_path(), kind
    if kind == "int4":
        dtype, quantisation = "bfloat16", Int4()
    plan = BuildPlan(
        CpuBackend,
        HostBuffers(CPU, 1),
        max_model_len=64,
        fuse=True,
        skip_check=False,
        kernels=FoundKernels(CpuKernels("avx2"), True),
        quantisation=quantisation,
    )
    return build(loaded(path, dtype), plan)


def assigned(model):
    """Number of parts by place and type, for places that hold a kernel."""
    forward = model.forward
    owners = [forward, forward.end, *forward.layers]
    for layer in forward.layers:
        owners += [getattr(layer.attention, "own", layer.attention), layer.mlp]
    found = Counter()
    for owner in owners:
        for place in PLACES:
            value = getattr(owner, place, None)
            if type(value).__module__.startswith(
                ("tenonry_worker_torch_cpu", "tenonry_kernels_cpu")
            ):
                found[f"{place}: {type(value).__name__}"] += 1
    return dict(found)


# Of each model: the counts of the report, and where the kernels of layers are.
ATTENTION = "4 × attention, 4 × prefill, 4 × layer, 1 × stack, 1 × prompts"
BETWEEN = "9 × norm, 4 × rotation, 4 × gate"
PACKED = {
    "before_attention: PackedNorm": 4,
    "before_mlp: PackedNorm": 4,
    "gate_kernel: Gate": 4,
    "kernel: WholeLayer": 4,
    "norm: PackedNorm": 1,
    "prompts: WholePrompts": 1,
    "stack: WholeStack": 1,
    "turn_kernel: TurnHeads": 4,
}
LINEARS = {"qkv": 4, "out": 4, "gate_up": 4, "down": 4, "head": 1}
TABLE = {
    "float32": (
        "4 × attention, 9 × norm, 4 × first half",
        {
            "attention: KernelAttention": 4,
            "before_attention: KernelNorm": 4,
            "before_mlp: KernelNorm": 4,
            "first_half_kernel: AttentionHalf": 4,
            "norm: KernelNorm": 1,
        },
    ),
    "bfloat16": (
        (
            f"17 × linear, {ATTENTION}, 1 × rounds, {BETWEEN}; rows, more with torch: 512×256 any, 256×256 any, "
            "1280×256 any, 256×640 any, layer to 128, 2048×256 any"
        ),
        PACKED
        | {"rounds: WholeRounds": 1}
        | {f"{place}: KernelLinear": count for place, count in LINEARS.items()},
    ),
    "int4": (
        (
            f"{ATTENTION}, {BETWEEN}; rows, more with torch: layer to 128; linear, any rows: 4 × 512×256 of 4 bits, "
            "4 × 256×256 of 4 bits, 4 × 1280×256 of 4 bits, 4 × 256×640 of 4 bits, 1 × 2048×256 of 4 bits"
        ),
        PACKED | {f"{place}: LowBitLayer": count for place, count in LINEARS.items()},
    ),
}


@pytest.mark.parametrize("kind", TABLE)
def test_parts_of_the_demo_model_have_these_kernels(kind, tmp_path, monkeypatch):
    model = model_of(kind, tmp_path, monkeypatch)
    report, places = TABLE[kind]
    assert model.chosen_kernels == f"Step kernels 'cpu' (avx2): {report}"
    assert assigned(model) == places


def test_parts_of_a_gguf_model_have_those_of_a_quantised_one(tmp_path, monkeypatch):
    """It has two layers; an attention head of it is of another size."""
    model = model_of("gguf", tmp_path, monkeypatch)
    assert model.chosen_kernels == (
        "Step kernels 'cpu' (avx2): 2 × attention, 2 × prefill, 2 × layer, 1 × stack, 1 × prompts, 5 × norm, "
        "2 × rotation, 2 × gate; rows, more with torch: layer to 128; linear, any rows: 2 × 512×256 of 4 bits, "
        "2 × 256×256 of 4 bits, 2 × 1024×256 of 4 bits, 2 × 256×512 of 4 bits, 1 × 267×256 of 4 bits"
    )
    places = TABLE["int4"][1]
    assert assigned(model) == {
        place: min(count, gguf_files.LAYERS) for place, count in places.items()
    }
