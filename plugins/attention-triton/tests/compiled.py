"""The kernels compiled for GPUs that are not here: prints a JSON object, "kernel shape" → registers and so on.

A program of its own, since the interpreter's process has no compiler. `compiled.py 90 llama`: one card, some shapes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tenonry_attention_triton import between, launch, launch_matrices, parts
from tenonry_attention_triton.decode import MAX_SPLITS, decode_join, decode_split
from tenonry_attention_triton.prefill import chunk_attention, write_slots
from tenonry_torch_base.attention.base import LayerSpec
from tenonry_torch_base.attention.kv_storage import STORAGES

TOOL = next(Path(triton.__file__).parent.rglob("bin/cuobjdump"), None)
BLOCK_SIZE = 16
HIDDEN = 4096
# Name → data type, query heads, KV heads, key size, value size, more of the spec. The last word: how K/V are kept.
SHAPES = {
    "llama": ("bf16", 32, 8, 128, 128, {}),
    "gpt-oss": ("bf16", 64, 8, 64, 64, {"sinks": True, "window": 128}),
    "gemma": ("bf16", 8, 4, 256, 256, {"softcap": 50.0}),
    "mla": ("bf16", 16, 16, 192, 128, {}),
    "float32": ("fp32", 32, 8, 128, 128, {}),
    "wide float32": ("fp32", 8, 4, 256, 256, {"softcap": 50.0}),
}
SHAPES |= {
    f"{name} {kept}": SHAPES[name]
    for name in ("llama", "gemma", "float32", "wide float32")
    for kept in ("int8", "fp8")
}
ITEMSIZE = {"bf16": 2, "fp32": 4}
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
INTEGERS = {
    "window",
    "chunk",
    "width",
    "splits",
    "key_stride",
    "value_stride",
    "key_token",
    "value_token",
    "qkv_token",
    "inner",
    "rows",
    "outputs",
    "x_row",
    "chunks",
    "size",
}
POINTERS_TO = {
    "table": "i32", "lengths": "i32", "tokens": "i32", "counts": "i32", "tile_row": "i32", "tile_at": "i32",
    "slots": "i64", "key_words": "i16", "value_words": "i16", "packed": "u8", "scales": "fp32", "zeros": "fp32",
    "part": "fp32", "stats": "fp32", "weights": "fp32", "top_k": "i64", "top_p": "fp32", "sums": "fp32",
    "limits": "fp32", "rounded": "u8",
}  # fmt: skip
FREE = {"window", "chunk", "width", "splits", "rows"}  # not specialised by the launcher


def kept_of(name):
    word = name.rpartition(" ")[2]
    return word if word in STORAGES else "auto"


def kernels(arch, name):
    """Kernel → its function, constants and options, as `launch` chooses them for a shape."""
    dtype, heads, kv, key_size, value_size, more = SHAPES[name]
    spec = LayerSpec(
        name=name, index=0, num_heads=heads, num_kv_heads=kv, key_size=key_size, value_size=value_size,
        scaling=0.1, **more,
    )  # fmt: skip
    storage = STORAGES[kept_of(name)](TYPES[dtype])
    shape = launch.Shape(spec, ITEMSIZE[dtype], arch // 10, storage)
    blocks = {"BS": BLOCK_SIZE}
    sinks = {"HAS_SINKS": spec.sinks}
    yield "write", write_slots, {**blocks, **shape.sizes, **shape.kept}, shape.write_options
    split = {
        "LINES": shape.decode_lines,
        "TILE": shape.tile,
        **blocks,
        **sinks,
        **shape.common,
        **shape.kept,
    }
    yield "split", decode_split, {"WHOLE": False, **split}, shape.decode_options
    yield "whole", decode_split, {"WHOLE": True, **split}, shape.whole_options
    join = {"HEADS": heads, "V": value_size, "VP": shape.sizes["VP"], "MOST": MAX_SPLITS, **sinks}
    yield "join", decode_join, join, shape.join_options
    chunk = {
        "LINES": shape.chunk_lines,
        "TILE": shape.chunk_tile,
        **blocks,
        **sinks,
        **shape.common,
        **shape.kept,
    }
    yield "chunk", chunk_attention, chunk, shape.chunk_options
    if key_size != value_size:
        return
    turn = {
        "HEADS": heads,
        "KV": kv,
        "D": key_size,
        "DP": shape.sizes["DP"],
        "ROTATED": key_size,
        "NORMED": True,
        "WIDTH": shape.kept["KW"],
        "KIND": shape.kept["KIND"],
    }
    yield "turn", between.turn_and_write, {**turn, **blocks}, {"num_warps": 1}
    norm = {"SIZE": HIDDEN, "PADDED": HIDDEN, "ADDS": True}
    yield "norm", between.add_norm, {"ROUNDS": False, **norm}, {"num_warps": 8}
    yield "norm-in-fp8", between.add_norm, {"ROUNDS": True, **norm}, {"num_warps": 8}
    yield "gate", between.gate, {"BLOCK": parts.GATE_BLOCK}, {"num_warps": 4}
    block = {"BLOCK": launch_matrices.ROUND_BLOCK}
    yield "gate-in-fp8", between.gate_rounded, block, parts.GATE_ROUNDED_OPTIONS


def signature(function, constants, dtype, kept):
    types = {}
    for name in function.arg_names:
        if name in constants:
            types[name] = "constexpr"
        elif name in INTEGERS:
            types[name] = "i32"
        elif name in {"scale", "softcap", "eps"}:
            types[name] = "fp32"
        elif name in {"keys", "values"}:
            types[name] = f"*{dtype if kept == 'auto' else 'u8'}"
        else:
            types[name] = f"*{POINTERS_TO.get(name, dtype)}"
    if constants.get("ROUNDS"):
        types["out"] = "*u8"
    return types


def compiled(arch, function, constants, options, dtype, kept="auto"):
    names = function.arg_names
    types = signature(function, constants, dtype, kept)
    # Pointers and strides are divisible by 16, as the launcher finds them.
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if types[name].startswith("*") or (types[name] == "i32" and name not in FREE)
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(function, types, values, aligned)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def used(made):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = run(["-res-usage", file.name])
        code = run(["-sass", file.name])
    found = {name: int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK", "LOCAL")}
    return {
        "registers": found["REG"],
        "spills": found["STACK"] + found["LOCAL"] + len(re.findall(r"\b(?:LDL|STL)\b", code)),
        "shared": made.metadata.shared,
        "wide loads": len(re.findall(r"\bLDG\.E[.\w]*\.128|\bLDGSTS\.E[.\w]*\.128", code)),
        "products": len(re.findall(r"\b(?:HGMMA|HMMA|UTCHMMA)\b", code)),
    }


def run(arguments):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {}
    arch, *wanted = sys.argv[1:]
    for shape in wanted or SHAPES:
        for name, *kernel in kernels(int(arch), shape):
            found[f"{name} {shape}"] = used(
                compiled(int(arch), *kernel, SHAPES[shape][0], kept_of(shape))
            )
    print(json.dumps(found))
