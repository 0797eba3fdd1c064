"""Products with quantised matrices, and kernels of rows, compiled for a GPU that is not here, as `compiled.py`: prints
kind → registers.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import compiled
import torch
from cases import COMPILED_MATRICES

from tenonry_attention_triton import launch_matrices, truncation
from tenonry_attention_triton.matrix_kernels import product, round_rows
from tenonry_attention_triton.threshold_kernel import thresholds

INPUTS = 4096


def layer(bits, group, *, zeros=False, floats=False):
    chunk = min(128, group)
    return SimpleNamespace(
        bits=bits, chunk=chunk, chunks=INPUTS // chunk, per_group=group // chunk, is_float=floats,
        zeros=zeros or None, bias=None,
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {}
    for name, (rows, dtype, arguments) in COMPILED_MATRICES.items():
        given = launch_matrices.constants(layer(**arguments), rows, compiled.ITEMSIZE[dtype])
        options = {key: given.pop(key) for key in ("num_warps", "num_stages")}
        found[name] = compiled.used(
            compiled.compiled(int(sys.argv[1]), product, given, options, dtype)
        )
    arch = int(sys.argv[1])
    for name, dtype in (("round in bf16", "bf16"), ("round in fp32", "fp32")):
        block = {"BLOCK": launch_matrices.ROUND_BLOCK}
        found[name] = compiled.used(
            compiled.compiled(arch, round_rows, block, launch_matrices.ROUND_OPTIONS, dtype)
        )
    block = {"BLOCK": truncation.BLOCK}
    found["thresholds"] = compiled.used(
        compiled.compiled(arch, thresholds, block, truncation.OPTIONS, "fp32")
    )
    print(json.dumps(found))
