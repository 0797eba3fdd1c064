"""The blocking `LLM` of tenonry as the program of an engine, measured exactly as its peers are. Child process."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from tenonry_bench.models.outside.engine_programs.answers import (
    Prompts,
    Run,
    Score,
    answer_runs,
    check_counts,
    read_options,
)


def load(options: dict[str, Any]) -> tuple[str, Run, Score]:
    """The engine, one run on it, and the score of a text."""
    from tenonry import __version__
    from tenonry.client.llm import LLM
    from tenonry.sampling_params import SamplingParams
    from tenonry_bench.settings import engine_config
    from tenonry_bench.throughput import set_threads
    from tenonry_commands.arguments import add_engine_arguments

    parser = argparse.ArgumentParser(prog="tenonry --engine-args")
    add_engine_arguments(parser, model_positional=False)
    asked = parser.parse_args(["--model", options["model"], *options["engine_args"]])
    config, _ = engine_config(asked, max_num_seqs=options["max_num_seqs"])
    set_threads(options["threads"])
    llm = LLM(config=config)

    def run(prompts: Prompts, out_len: int) -> dict[str, Any]:
        params = SamplingParams(temperature=0.0, max_tokens=out_len, ignore_eos=True)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        start = time.perf_counter()
        outputs = llm.generate(requests, params, use_tqdm=False)
        wall = time.perf_counter() - start
        check_counts([len(output.outputs[0].token_ids) for output in outputs], out_len)
        times = [output.metrics for output in outputs if output.metrics is not None]
        gaps = max(1, out_len - 1)
        return {
            "wall": wall,
            "ttft": [each.first_token_time - each.arrival_time for each in times],
            "tpot": [(each.last_token_time - each.first_token_time) / gaps for each in times],
        }

    def score(text: str | list[int]) -> dict[str, Any]:
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
        prompt: Any = text if isinstance(text, str) else {"prompt_token_ids": text}
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        tokens = list(output.prompt_token_ids)
        rows = zip(tokens[1:], (output.prompt_logprobs or [])[1:], strict=True)
        return {"tokens": tokens, "nll": [-(row or {})[token].logprob for token, row in rows]}

    return __version__, run, score


def main() -> int:
    """Run the program with the options on the command line."""
    options = read_options(sys.argv[1:])
    return answer_runs(lambda: load(options))


if __name__ == "__main__":
    sys.exit(main())
