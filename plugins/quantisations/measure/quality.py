"""Quality of quantised models: perplexity and maximum error of a log-probability, of the demo model, by format.

`.venv/bin/python plugins/quantisations/measure/quality.py` prints the table of docs/how-to/serve-quantised-models.md.
The text is of the kind that the model was trained on, from another seed. Checkpoints are made by rounding to the
nearest: methods that use activations are more accurate. GGUF files with K-quants are measured where TENONRY_GGML names
llama.cpp's library.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path += [
    str(ROOT / "plugins" / "demo-model" / "train"),
    str(Path(__file__).parents[1] / "tests"),
]

import as_gguf  # noqa: E402
import quantised_models  # noqa: E402
import stories  # noqa: E402
from gguf import GGMLQuantizationType as Kind  # noqa: E402

from tenonry import LLM, SamplingParams  # noqa: E402

MODEL = ROOT / "plugins" / "demo-model" / "src" / "tenonry_demo_model" / "model"
NUM_TEXTS = 20
SEED = 777
COMPARED = 20  # the likeliest tokens of each position
PARAMS = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=64)
WEIGHTS_8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
FLOATS = "float32"


def weights_4(size: int) -> dict[str, Any]:
    """Settings for 4 bits in groups of columns."""
    return {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": size,
    }


def measured(folder: Path, texts: list[str], **settings: Any) -> tuple[list[dict], float]:
    """Per text and position, token → log-probability; and the perplexity."""
    options = {"dtype": "float32", "worker": "torch"} | settings
    with LLM(model=str(folder), **options) as llm:
        outputs = llm.generate(texts, PARAMS, use_tqdm=False)
    rows = []
    total = 0.0
    for output in outputs:
        for token, row in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
            rows.append({key: entry.logprob for key, entry in row.items()})
            total -= row[token].logprob
    return rows, math.exp(total / len(rows))


def worst(rows: list[dict], wanted: list[dict]) -> float:
    """The greatest difference over the likeliest tokens of each position."""
    errors = [0.0]
    for row, other in zip(rows, wanted, strict=True):
        likeliest = sorted(other, key=other.__getitem__, reverse=True)[:COMPARED]
        errors += [abs(row[key] - other[key]) for key in likeliest if key in row]
    return max(errors)


def checkpoint(folder: str, write: Callable[[Path], Any]) -> Path:
    """The model as `write` makes it."""
    made = Path(folder) / "made"
    shutil.copytree(MODEL, made)
    write(made)
    return made


def main() -> None:
    """Print a row per format."""
    rng = Random(SEED)
    texts = [stories.story(rng) for _ in range(NUM_TEXTS)]
    wanted, perplexity = measured(MODEL, texts)
    print(f"{len(wanted)} tokens")
    print(f"| {FLOATS} | {perplexity:.4f} | – |")
    gptq = {"bits": 4, "group_size": 128, "desc_act": False}
    cases = [
        ("bfloat16", None, {"dtype": "bfloat16"}),
        ("int8", None, {"quantization": "int8"}),
        ("int4", None, {"quantization": "int4"}),
        ("K and V in int8", None, {"kv_cache_dtype": "int8"}),
        ("K and V in fp8", None, {"kv_cache_dtype": "fp8"}),
        ("bfloat16, K and V in int8", None, {"dtype": "bfloat16", "kv_cache_dtype": "int8"}),
        ("bfloat16, K and V in fp8", None, {"dtype": "bfloat16", "kv_cache_dtype": "fp8"}),
        ("int8, K and V in int8", None, {"quantization": "int8", "kv_cache_dtype": "int8"}),
        ("W8A8", lambda path: quantised_models.compress(path, WEIGHTS_8, INPUTS), {}),
    ]
    floats = WEIGHTS_8 | {"type": "float"}
    cases.append(("fp8 by channel", lambda path: quantised_models.compress(path, floats), {}))
    for size in (32, 128):
        write = lambda path, size=size: quantised_models.compress(path, weights_4(size))  # noqa: E731
        cases.append((f"W4A16 {size}", write, {}))
    write = lambda path: quantised_models.write_plainly(path, "gptq", gptq)  # noqa: E731
    cases.append(("gptq 128", write, {}))
    block = lambda path: quantised_models.write_floats(path, [128, 128])  # noqa: E731
    cases.append(("fp8 by block", block, {}))
    kinds = ["Q8_0", "Q4_0", *(["Q6_K", "Q4_K"] if as_gguf.GGML in os.environ else [])]
    cases += [(f"GGUF {kind}", Kind[kind], {"tokenizer": str(MODEL)}) for kind in kinds]
    for name, write, settings in cases:
        with tempfile.TemporaryDirectory() as folder:
            if isinstance(write, Kind):
                path = as_gguf.write(MODEL, Path(folder) / "made.gguf", write)
            else:
                path = MODEL if write is None else checkpoint(folder, write)
            rows, perplexity = measured(path, texts, **settings)
        print(f"| {name} | {perplexity:.4f} | {worst(rows, wanted):.3f} |", flush=True)


if __name__ == "__main__":
    main()
