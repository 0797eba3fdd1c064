"""Thresholds of top-k and top-p in Triton's interpreter: prints a JSON object, case → rows whose weights and drawn
token are those of the CPU's sampler, and all rows.
"""

from __future__ import annotations

import json

import numpy as np
import torch

from tenonry_attention_triton import truncation
from tenonry_attention_triton.truncation import thresholds
from tenonry_torch_base.sampler.choose import Truncation, draw, keep, truncated_weights

ROWS = 24
TOP_K = (0, 1, 5, 40, 300, 3000)
TOP_P = (1.0, 0.95, 0.5, 0.01)
CASES = {
    "many tokens": lambda: torch.randn(ROWS, 2100) * 3,
    "flat": lambda: torch.randn(ROWS, 900) * 0.01,
    "ties": lambda: torch.randint(0, 4, (ROWS, 700)).float(),
    "all alike": lambda: torch.zeros(ROWS, 900),
    "one token": lambda: torch.cat([torch.full((ROWS, 1), 90.0), torch.randn(ROWS, 600)], 1),
    "in half precision": lambda: (torch.randn(ROWS, 900) * 4).bfloat16().float(),
    "some forbidden": lambda: torch.randn(ROWS, 900).masked_fill(
        torch.rand(ROWS, 900) < 0.7, float("-inf")
    ),
}


def kernel_weights(logits, cut):
    weights = torch.softmax(logits, -1)
    keep(weights, torch.from_numpy(cut.min_p) * weights.amax(-1))
    keep(weights, thresholds(weights, torch.from_numpy(cut.top_k), torch.from_numpy(cut.top_p)))
    return weights


def found(logits):
    pairs = [(k, p) for k in TOP_K for p in TOP_P]
    top_k, top_p = (np.array(each) for each in zip(*pairs, strict=True))
    min_p = np.where(np.arange(ROWS) % 3 == 1, 0.02, 0.0).astype(np.float32)
    cut = Truncation(top_k.astype(np.int64), top_p.astype(np.float32), min_p)
    wanted, made = truncated_weights(logits, cut, torch.from_numpy), kernel_weights(logits, cut)
    uniform = torch.rand(ROWS, dtype=torch.float64)
    same = (wanted == made).all(1) & (draw(wanted, uniform) == draw(made, uniform))
    return [int(same.sum()), ROWS]


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    truncation.BLOCK = 1024  # a row takes several
    print(json.dumps({name: found(make()) for name, make in CASES.items()}))
