"""Steps for Triton's interpreter. `shape`: query heads, KV heads, size; `counts`: new tokens of each row."""

from __future__ import annotations

CASES = {
    "decode": {"shape": [8, 2, 64], "lengths": [1, 17, 100, 33]},
    "decode of one row in splits": {"shape": [4, 4, 32], "lengths": [200]},
    "decode by a group of 7": {"shape": [14, 2, 64], "lengths": [5, 70]},
    "decode of heads of 80": {"shape": [4, 4, 80], "lengths": [40, 3]},
    "decode of keys of 48 and values of 32": {
        "shape": [4, 4, 48],
        "value_size": 32,
        "lengths": [20, 65],
    },
    "decode in a window": {"shape": [8, 2, 64], "lengths": [200, 7], "window": 40},
    "decode in chunks": {"shape": [4, 2, 32], "lengths": [64, 65, 130], "chunk": 64},
    "decode with sinks": {"shape": [8, 2, 32], "lengths": [70, 1], "sinks": True, "window": 32},
    "decode with a soft cap": {"shape": [4, 2, 32], "lengths": [50, 9], "softcap": 20.0},
    "decode with small scores and a soft cap": {
        "shape": [4, 2, 32],
        "lengths": [50],
        "softcap": 50.0,
        "scaling": 0.01,
    },
    "prompt": {"shape": [4, 2, 32], "lengths": [40, 9], "counts": [40, 9]},
    "chunk of a prompt": {"shape": [4, 1, 32], "lengths": [70], "counts": [33]},
    "prompts among decoding rows": {
        "shape": [8, 2, 64],
        "lengths": [90, 30, 1, 45],
        "counts": [1, 30, 1, 20],
    },
    "prompt by a group of 6": {"shape": [12, 2, 32], "lengths": [50], "counts": [41]},
    "prompt of keys of 48 and values of 32": {
        "shape": [2, 2, 48],
        "value_size": 32,
        "lengths": [30],
        "counts": [30],
    },
    "prompt in a window": {
        "shape": [4, 2, 32],
        "lengths": [150, 20],
        "counts": [90, 20],
        "window": 24,
    },
    "prompt in chunks": {"shape": [4, 2, 32], "lengths": [150], "counts": [100], "chunk": 32},
    "prompt with sinks": {
        "shape": [4, 2, 32],
        "lengths": [60],
        "counts": [50],
        "sinks": True,
        "window": 16,
    },
    "prompt with a soft cap": {
        "shape": [2, 2, 32],
        "lengths": [50],
        "counts": [50],
        "softcap": 5.0,
    },
    "blocks of 32": {
        "shape": [4, 2, 64],
        "lengths": [100, 40],
        "counts": [1, 40],
        "block_size": 32,
    },
    "blocks of 1": {"shape": [2, 1, 32], "lengths": [20, 7], "counts": [1, 7], "block_size": 1},
    "decode of K/V in int8": {"shape": [8, 2, 64], "lengths": [1, 17, 100, 33], "kept": "int8"},
    "decode of K/V in fp8": {"shape": [8, 2, 64], "lengths": [1, 17, 100], "kept": "fp8"},
    "prompts among decoding rows, K/V in int8": {
        "shape": [4, 2, 32],
        "lengths": [70, 30, 1],
        "counts": [1, 30, 1],
        "kept": "int8",
    },
    "chunk of a prompt of keys of 48 and values of 32, K/V in fp8": {
        "shape": [2, 2, 48],
        "value_size": 32,
        "lengths": [40],
        "counts": [25],
        "kept": "fp8",
    },
    "half precision, K/V in fp8": {
        "shape": [4, 2, 64],
        "lengths": [60, 20],
        "counts": [1, 20],
        "dtype": "float16",
        "kept": "fp8",
    },
    "half precision": {
        "shape": [8, 2, 64],
        "lengths": [90, 33, 20],
        "counts": [1, 1, 20],
        "dtype": "float16",
    },
}
# Kernels between matrix products. `turn_and_write`: heads, KV heads, size, rotated elements, with a norm.
PARTS = {
    "rotation": ("turn_and_write", [4, 2, 64, 64, False], "float32"),
    "norm and rotation": ("turn_and_write", [4, 2, 32, 32, True], "float32"),
    "rotation of a quarter": ("turn_and_write", [2, 1, 64, 16, True], "float32"),
    "heads of 80": ("turn_and_write", [3, 3, 80, 80, True], "float32"),
    "rotation in half precision": ("turn_and_write", [4, 2, 64, 64, True], "float16"),
    "rotation with K/V in int8": ("turn_and_write", [4, 2, 32, 32, True, "int8"], "float32"),
    "rotation with K/V in fp8": ("turn_and_write", [4, 2, 32, 32, False, "fp8"], "float16"),
    "norm": ("add_norm", [96, False], "float32"),
    "sum and norm": ("add_norm", [256, True], "float32"),
    "sum and norm in half precision": ("add_norm", [256, True], "float16"),
    "sum and norm in fp8": ("add_norm_rounded", [96, True], "float32"),
    "norm in half precision and fp8": ("add_norm_rounded", [256, False], "float16"),
    "gate": ("gate", [1500], "float32"),
    "gate in fp8": ("gate_rounded", [2100], "float32"),
    "gate in half precision and fp8": ("gate_rounded", [64], "float16"),
    "gate in half precision": ("gate", [64], "float16"),
}
# Products with quantised matrices: rows, the matrix, with a bias.
MATRICES = {
    "4 bits": (1, {"bits": 4, "outputs": 96, "inputs": 256, "groups": 8}, False, "float32"),
    "4 bits with zeros, a bias and outputs that fill no tile": (
        3, {"bits": 4, "outputs": 50, "inputs": 256, "groups": 2, "zeros": True}, True, "float32",
    ),
    "4 bits in groups of 64": (17, {"bits": 4, "outputs": 64, "inputs": 192, "groups": 3}, False, "float32"),
    "4 bits in groups of mixed columns": (
        2, {"bits": 4, "outputs": 32, "inputs": 128, "groups": 4, "zeros": True, "mixed": True}, False, "float32",
    ),
    "4 bits in half precision": (70, {"bits": 4, "outputs": 64, "inputs": 256, "groups": 2}, True, "float16"),
    "8 bits": (2, {"bits": 8, "outputs": 64, "inputs": 256, "groups": 1}, True, "float32"),
    "8 bits in blocks": (5, {"bits": 8, "outputs": 64, "inputs": 256, "groups": 2, "floats": True}, False, "float32"),
    "fp8 in half precision": (
        4, {"bits": 8, "outputs": 64, "inputs": 128, "groups": 2, "floats": True}, False, "float16",
    ),
}  # fmt: skip
# The same for the compiler: rows, data type, the matrix.
COMPILED_MATRICES = {
    "4 bits, 1 row": (1, "bf16", {"bits": 4, "group": 128}),
    "4 bits with zeros, 16 rows": (16, "bf16", {"bits": 4, "group": 128, "zeros": True}),
    "4 bits in groups of 32, 64 rows": (64, "bf16", {"bits": 4, "group": 32}),
    "4 bits, 64 rows": (64, "bf16", {"bits": 4, "group": 128}),
    "4 bits in float32": (1, "fp32", {"bits": 4, "group": 128}),
    "8 bits, 1 row": (1, "bf16", {"bits": 8, "group": 4096}),
    "fp8, 64 rows": (64, "bf16", {"bits": 8, "group": 128, "floats": True}),
    "fp8 in float32": (16, "fp32", {"bits": 8, "group": 4096, "floats": True}),
    "4 bits, many rows": (300, "bf16", {"bits": 4, "group": 128}),
    "4 bits with zeros, many rows": (300, "bf16", {"bits": 4, "group": 128, "zeros": True}),
    "4 bits in groups of 32, many rows": (300, "bf16", {"bits": 4, "group": 32}),
    "4 bits in float32, many rows": (300, "fp32", {"bits": 4, "group": 128}),
    "8 bits, many rows": (300, "bf16", {"bits": 8, "group": 4096}),
    "8 bits in float32, many rows": (300, "fp32", {"bits": 8, "group": 4096}),
    "fp8, many rows": (300, "bf16", {"bits": 8, "group": 128, "floats": True}),
}
# Kernels of rows alone: their rounding to fp8, and thresholds of draws.
COMPILED_ROWS = ("round in bf16", "round in fp32", "thresholds")
