"""`tenonry bench adapters`: cost per step of rows with adapters (LoRA), compared with the same rows without.

A real model and an engine in this process; adapters with random weights for all projections.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry.messages import EngineCoreRequest
from tenonry.sampling_params import SamplingParams
from tenonry_bench.figures import Spread, spread
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import (
    add_count_flags,
    check_length,
    engine_config,
    settings_of,
    write_report,
)
from tenonry_bench.workload import default_workloads, random_prompts
from tenonry_commands.arguments import add_engine_arguments
from tenonry_hf_hub import list_weights, read_headers

if TYPE_CHECKING:
    from tenonry import LLM
    from tenonry.step import Adapter

PROMPT_LEN = 32
OUTPUT_LEN = 64
PROJECTION = re.compile(r"(.+\.(?:q|k|v|o|gate|up|down)_proj)\.weight")


class AdaptersReport(msgspec.Struct, kw_only=True):
    """Spreads over runs: a decoding step of `rows` rows, without adapters and with the given numbers of them, and the
    ratio.
    """

    bench: str = "adapters"
    runs: int
    rows: int
    adapters: int
    rank: int
    plain_ms: Spread
    adapted_ms: Spread
    ratio: Spread
    settings: dict[str, Any]
    machine: Machine


class AdaptersBench(Command):
    """Drives `LLM` over a real model."""

    summary = "Step time with many adapters, relative to the same rows without."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_count_flags(
            parser,
            ("--runs", 5, "Repetitions of each measurement"),
            ("--rows", 64, "Concurrent requests"),
            ("--adapters", 8, "Different adapters among them"),
            ("--rank", 16, "Rank of each"),
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        config, facts = engine_config(
            args, max_num_seqs=args.rows, max_loras=args.adapters, max_lora_rank=args.rank
        )
        check_length(config, PROMPT_LEN, OUTPUT_LEN)
        from tenonry import LLM

        with tempfile.TemporaryDirectory() as folder, LLM(config=config) as llm:
            adapters = []
            for number in range(args.adapters):
                path = Path(folder) / f"a{number}"
                write_adapter(path, facts.path, args.rank, number)
                adapters.append(llm.add_lora(f"a{number}", str(path)))
            figures = measure(llm, args.runs, args.rows, adapters, facts.vocab_size)
        report = AdaptersReport(
            runs=args.runs,
            rows=args.rows,
            adapters=args.adapters,
            rank=args.rank,
            settings=settings_of(config),
            machine=describe_machine(),
            **{name: spread(values) for name, values in figures.items()},
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


def write_adapter(folder: Path, model: str, rank: int, seed: int) -> None:
    """A folder as peft saves it, for every projection of the model's files. Raises ConfigError if they have none."""
    random = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for name, stored in read_headers(list_weights(model)).items():
        found = PROJECTION.fullmatch(name)
        if found is None or len(stored.shape) != 2:
            continue
        outputs, inputs = stored.shape
        layer = f"base_model.model.{found[1]}"
        tensors[f"{layer}.lora_A.weight"] = random.normal(0, inputs**-0.5, (rank, inputs))
        tensors[f"{layer}.lora_B.weight"] = random.normal(0, 0.01, (outputs, rank))
    if not tensors:
        raise ConfigError(
            f"{model} has no tensors that are named as projections; give another --model"
        )
    folder.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    (folder / "adapter_model.safetensors").write_bytes(safetensors_of(tensors))


def safetensors_of(tensors: dict[str, np.ndarray]) -> bytes:
    """A file of float32 tensors (https://github.com/huggingface/safetensors): length, header, data."""
    header = {}
    data = []
    begin = 0
    for name, tensor in tensors.items():
        raw = tensor.astype("<f4").tobytes()
        end = begin + len(raw)
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, end]}
        data.append(raw)
        begin = end
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(data)


def measure(
    llm: LLM, runs: int, rows: int, adapters: list[Adapter], vocab_size: int
) -> dict[str, list[float]]:
    """The values of each run, by the names of the report; the first of each kind warms up and does not count."""
    prompts = random_prompts(rows, PROMPT_LEN, default_workloads().seed, vocab_size)
    none: list[Adapter | None] = [None]
    figures: dict[str, list[float]] = {"plain_ms": [], "adapted_ms": [], "ratio": []}
    for run in range(runs + 1):
        plain = step_ms(llm, prompts, none)
        adapted = step_ms(llm, prompts, [*adapters])
        if run:
            figures["plain_ms"].append(plain)
            figures["adapted_ms"].append(adapted)
            figures["ratio"].append(adapted / plain)
    return figures


def step_ms(llm: LLM, prompts: list[list[int]], adapters: list[Adapter | None]) -> float:
    """Milliseconds of a decoding step: the time of long outputs, less that of outputs of one token."""
    short = _elapsed(llm, prompts, adapters, 1)
    long = _elapsed(llm, prompts, adapters, OUTPUT_LEN)
    return 1e3 * (long - short) / (OUTPUT_LEN - 1)


def _elapsed(
    llm: LLM, prompts: list[list[int]], adapters: list[Adapter | None], output_len: int
) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    requests = [
        EngineCoreRequest(
            handle=0,
            request_id="",
            prompt_token_ids=np.array(prompt, np.int32),
            sampling_params=params,
            adapter=adapters[number % len(adapters)],
        )
        for number, prompt in enumerate(prompts)
    ]
    started = time.perf_counter()
    outputs = llm.generate(requests, params, use_tqdm=False)
    elapsed = time.perf_counter() - started
    for output in outputs:
        if output.error is not None:
            raise ConfigError(f"a request failed: {output.error}")
    return elapsed


def describe(report: AdaptersReport) -> str:
    """A few lines of readable text."""
    return "\n".join(
        [
            f"{report.runs} runs of {report.rows} rows; median (min–max)",
            f"  step without adapters, ms    {report.plain_ms.text(3)}",
            f"  with {report.adapters} of rank {report.rank}, ms       {report.adapted_ms.text(3)}",
            f"  ratio                        {report.ratio.text(2)}",
        ]
    )
