"""The loop of a program: a line of JSON for each run on standard input, and one for its times on standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

Options = dict[str, Any]
Prompts = list[list[int]]
# {"wall": s, "ttft": [s], "tpot": [s]}: the lists have one entry per prompt.
Times = dict[str, Any]
# Prompts and the number of new tokens of each.
Run = Callable[[Prompts, int], Times]
Load = Callable[[], tuple[str, Run]]


def read_options(words: Sequence[str]) -> Options:
    """`model`, `threads`, `max_model_len`, `max_num_seqs`, `scratch` (a folder), `prepare` (only the preparation)."""
    options: Options = json.loads(words[0])
    return options


def answer_runs(load: Load) -> int:
    """Load the engine, then answer runs until the input ends. Whatever the engine prints goes to standard error."""
    real_output = os.dup(1)
    os.dup2(2, 1)
    version, run = load()
    with os.fdopen(real_output, "w", buffering=1, encoding="utf-8") as answers:
        print(json.dumps({"version": version}), file=answers)
        for line in sys.stdin:
            asked = json.loads(line)
            prompts = asked["prompts"]
            times = run(prompts, asked["out_len"])
            print(json.dumps(times), file=answers)
    return 0


def check_counts(counts: Sequence[int], wanted: int) -> None:
    """Raise RuntimeError unless every prompt got exactly `wanted` tokens: shorter answers would count as faster."""
    lengths = set(counts)
    if lengths != {wanted}:
        raise RuntimeError(f"answers of {sorted(lengths)} tokens instead of {wanted}")
