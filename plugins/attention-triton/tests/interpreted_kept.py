"""Vectors in 8 bits as a kernel writes and reads them: prints a JSON object, kind → whether each is as torch has it."""

from __future__ import annotations

import json

import torch
import triton
import triton.language as tl

from tenonry_attention_triton.kept import KINDS, load_vectors, store_vector
from tenonry_torch_base.attention.kv_storage import STORAGES

VECTORS, SIZE = 300, 64


@triton.jit
def write(x, kept, words, N: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, N)
    store_vector(tl.load(x + row * N + d), kept, words, row * WIDTH, d, d < N, WIDTH, KIND)


@triton.jit
def read(
    kept, words, out, N: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr, M: tl.constexpr
):
    line = tl.arange(0, M)
    d = tl.arange(0, N)
    x = load_vectors(kept, words, line * WIDTH, line < M, tl.float32, N, N, WIDTH, KIND)
    tl.store(out + line[:, None] * N + d[None, :], x)


def vectors():
    """Of all magnitudes, and of several within one; then zeros, and numbers that are not finite."""
    torch.manual_seed(0)
    x = torch.randn(VECTORS, SIZE) * torch.logspace(-30, 30, VECTORS)[:, None]
    x[100:200] *= torch.logspace(-5, 0, SIZE)
    x[0] = 0
    x[1, 3], x[2, 3] = float("nan"), float("inf")
    return x


def found(kind):
    storage = STORAGES[kind](torch.float32)
    width, x = storage.width(SIZE), vectors()
    wanted = storage.packed(x)
    kept = torch.zeros_like(wanted)
    write[(VECTORS,)](x, kept, kept.view(torch.int16), SIZE, width, KINDS[kind])
    finite = torch.isfinite(x).all(1)
    out = torch.empty(256, SIZE)
    read[(1,)](wanted, wanted.view(torch.int16), out, SIZE, width, KINDS[kind], 256)
    seen = storage.unpacked(wanted, torch.empty(VECTORS, SIZE))[:256]
    spoilt = storage.unpacked(kept, torch.empty(VECTORS, SIZE))[~finite]
    return {
        "written": torch.equal(kept[finite], wanted[finite]),
        "read": torch.equal(out[finite[:256]], seen[finite[:256]]),
        "not finite": not torch.isfinite(spoilt).any(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({kind: found(kind) for kind in ("int8", "fp8")}))
