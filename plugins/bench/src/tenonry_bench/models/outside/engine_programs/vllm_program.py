"""vLLM's blocking `LLM`. Its process is replaced once by one with the libraries preloaded that its CPU notes advise."""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path

from .answers import Options, Prompts, Run, Times, answer_runs, check_counts, read_options

MARK = "TENONRY_BENCH_PRELOADED"


def preload() -> None:
    """Load tcmalloc and Intel's OpenMP, if both exist and nothing is preloaded."""
    allocator = Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")
    openmp = Path(sys.prefix).glob("lib/libiomp5.so")
    found = [*allocator, *openmp]
    if len(found) < 2 or MARK in os.environ or "LD_PRELOAD" in os.environ:
        return
    os.environ[MARK] = "1"
    os.environ["LD_PRELOAD"] = ":".join(map(str, found))
    words = ["-m", "engine_programs.vllm_program", *sys.argv[1:]]
    os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - our own words


def load(options: Options) -> tuple[str, Run]:
    """The engine, and one run on it."""
    vllm = importlib.import_module("vllm")
    engine = vllm.LLM(
        model=options["model"], max_model_len=options["max_model_len"], disable_log_stats=False
    )

    def run(prompts: Prompts, out_len: int) -> Times:
        params = vllm.SamplingParams(temperature=0, max_tokens=out_len, ignore_eos=True)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        start = time.perf_counter()
        outputs = engine.generate(asked, params, use_tqdm=False)
        wall = time.perf_counter() - start
        answers = [output.outputs[0] for output in outputs]
        check_counts([len(answer.token_ids) for answer in answers], out_len)
        times = [output.metrics for output in outputs]
        spans = [each.last_token_ts - each.first_token_ts for each in times]
        gaps = max(1, out_len - 1)
        return {
            "wall": wall,
            "ttft": [each.first_token_latency for each in times],
            "tpot": [span / gaps for span in spans],
        }

    return vllm.__version__, run


def main() -> int:
    """Run the program with the options on the command line."""
    preload()
    options = read_options(sys.argv[1:])
    return answer_runs(lambda: load(options))


if __name__ == "__main__":
    sys.exit(main())
