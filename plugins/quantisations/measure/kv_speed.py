"""Benefit of K and V in 8 bits: tokens per second and memory, of one long sequence and of many, by storage.

`.venv/bin/python plugins/quantisations/measure/kv_speed.py` prints the table of docs/how-to/serve-quantised-models.md.
The model has random weights and the shape of Qwen3-0.6B with `LAYERS` layers, so that the cache is large compared with
the weights, as with long contexts. Prompts come from the prefix cache when they are timed, and the time of a step of
one token is subtracted: the figures are those of decoding.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tenonry import LLM, SamplingParams

LAYERS = 4
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": LAYERS,
    "vocab_size": 32_000, "max_position_embeddings": 16_384, "tie_word_embeddings": True,
}  # fmt: skip
WORKLOADS = {"one": (1, 8_192), "many": (64, 1_024)}  # sequences, tokens of each
STORAGES = ("auto", "int8", "fp8")
NUM_TOKENS = 33
TURNS = 3


def seconds(llm: LLM, prompts: list[dict[str, list[int]]], count: int) -> float:
    """Seconds for `count` tokens of each prompt."""
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    begin = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - begin


def measured(folder: str, storage: str, workload: str, dtype: str) -> tuple[float, list[float]]:
    """Tokens per second of each turn, and of prompts that are computed."""
    num_sequences, length = WORKLOADS[workload]
    prompts = [
        {"prompt_token_ids": [(37 * row + 7 * place) % 31_000 for place in range(length)]}
        for row in range(num_sequences)
    ]
    settings = {
        "worker": "torch",
        "device": "cpu",
        "dtype": dtype,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "kv_cache_dtype": storage,
        "kv_cache_memory_bytes": 3 << 30,
        "max_num_seqs": num_sequences,
    }
    with LLM(model=folder, **settings) as llm:
        prefill = num_sequences * length / seconds(llm, prompts, 1)
        found = []
        for _ in range(TURNS):
            alone = seconds(llm, prompts, 1)
            more = seconds(llm, prompts, NUM_TOKENS) - alone
            found.append(num_sequences * (NUM_TOKENS - 1) / more)
    return prefill, found


def main() -> None:
    """Print a row per workload and storage; `python kv_speed.py float32 one` measures another type, or one of them."""
    dtype = sys.argv[1] if len(sys.argv) > 1 else "bfloat16"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        for workload in sys.argv[2:] or WORKLOADS:
            for storage in STORAGES:
                prefill, found = measured(folder, storage, workload, dtype)
                turns = ", ".join(f"{rate:.1f}" for rate in found)
                middle = statistics.median(found)
                print(
                    f"| {dtype} | {workload} | {storage} | {prefill:.0f} | {middle:.1f} ({turns}) |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
