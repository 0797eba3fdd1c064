"""`python -m tenonry_bench.first_token`: loads a model, generates one token, reports it. `startup` times it."""

from __future__ import annotations

import argparse
import sys

from tenonry_bench.workload import load_workloads

MARKER = "FIRST_TOKEN"
WORKLOAD = "W5"


def main(words: list[str] | None = None) -> int:
    """Print the marker after the first token."""
    from tenonry.client.llm import LLM
    from tenonry.sampling_params import SamplingParams
    from tenonry_bench.settings import engine_config
    from tenonry_bench.throughput import set_threads
    from tenonry_commands.arguments import add_engine_arguments

    parser = argparse.ArgumentParser(prog="tenonry_bench.first_token")
    add_engine_arguments(parser, model_positional=False)
    config, facts = engine_config(parser.parse_args(words))
    set_threads(None)
    prompts = load_workloads(None).prompts(WORKLOAD, 0, vocab_size=facts.vocab_size)
    with LLM(config=config) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
        )
        print(MARKER, outputs[0].outputs[0].token_ids, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
