"""The loop of a program: a line of JSON for each run on standard input, and one for its times on standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Options = dict[str, Any]
Prompts = list[list[int]]
# {"wall": s, "ttft": [s], "tpot": [s]}: the lists have one entry per prompt.
Times = dict[str, Any]
# Prompts and the number of new tokens of each.
Run = Callable[[Prompts, int], Times]
# A text, or its token ids; {"tokens": ids, "nll": of each but the first, in nats}.
Score = Callable[[str | list[int]], dict[str, Any]]


class Program(NamedTuple):
    """A loaded engine; `score`: of engines that compute probabilities of a given text."""

    version: str
    run: Run
    score: Score | None = None


Load = Callable[[], tuple[Any, ...]]


def read_options(words: Sequence[str]) -> Options:
    """`model`, `threads`, `max_model_len`, `max_num_seqs`, `scratch` (a folder), `prepare` (only the preparation)."""
    options: Options = json.loads(words[0])
    return options


def answer_runs(load: Load) -> int:
    """Load the engine, then answer runs and scores until the input ends. Whatever the engine prints goes to standard
    error. `load` returns the fields of `Program`.
    """
    real_output = os.dup(1)
    os.dup2(2, 1)
    program = Program(*load())
    with os.fdopen(real_output, "w", buffering=1, encoding="utf-8") as answers:
        print(json.dumps({"version": program.version}), file=answers)
        for line in sys.stdin:
            asked = json.loads(line)
            if "score" in asked:
                if program.score is None:
                    raise RuntimeError("this engine gives no probabilities of a text")
                answer = program.score(asked["score"])
            else:
                answer = program.run(asked["prompts"], asked["out_len"])
            print(json.dumps(answer), file=answers)
    return 0


def check_counts(counts: Sequence[int], wanted: int) -> None:
    """Raise RuntimeError unless every prompt got exactly `wanted` tokens: shorter answers would count as faster."""
    lengths = set(counts)
    if lengths != {wanted}:
        raise RuntimeError(f"answers of {sorted(lengths)} tokens instead of {wanted}")
