"""`generate` of transformers, all prompts in one batch: prompts of one run have the same length."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from .answers import Options, Prompts, Run, Times, answer_runs, check_counts, read_options


def load(options: Options) -> tuple[str, Run]:
    """The model, and one run on it."""
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    torch.set_num_threads(options["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(options["model"], dtype="auto")
    model.eval()
    model.generation_config.eos_token_id = None

    def run(prompts: Prompts, out_len: int) -> Times:
        stamps: list[float] = []

        def stamp(ids: Any, _scores: Any, **_: Any) -> Any:
            """A stopping criterion that stops nothing: it is called once per token."""
            stamps.append(time.perf_counter())
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        ids = torch.tensor(prompts)
        start = time.perf_counter()
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=out_len,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=[stamp],
            )
        wall = time.perf_counter() - start
        check_counts([found.shape[1] - ids.shape[1]], out_len)
        count = len(prompts)
        first = stamps[0] - start
        gaps = max(1, out_len - 1)
        gap = (stamps[-1] - stamps[0]) / gaps
        return {"wall": wall, "ttft": [first] * count, "tpot": [gap] * count}

    return transformers.__version__, run


def main() -> int:
    """Run the program with the options on the command line."""
    options = read_options(sys.argv[1:])
    return answer_runs(lambda: load(options))


if __name__ == "__main__":
    sys.exit(main())
