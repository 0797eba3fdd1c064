"""`tenonry bench gpu`: whether a device computes what the CPU does, and how near to its memory's speed it decodes.

One `LLM` after another in this process, with random weights. Tokens of a tiny model in float32 are compared with those
on the CPU, for each kind of request; then steps of a shape are timed against the time in which the device reads its
weights and K/V, and one run is profiled. Without a device it rehearses all of it on the CPU.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from tenonry.interfaces.command import Command
from tenonry_bench.gpu_runs import (
    Answers,
    DeviceFacts,
    Profile,
    StepTime,
    compared,
    device_facts,
    timed,
)
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import add_count_flags, counts, write_report
from tenonry_bench.tiny_models import LLAMA_SHAPES, write_shape

ROWS = [1, 64, 256]
REHEARSED_ROWS = [1, 2]


class GpuReport(msgspec.Struct, kw_only=True):
    """`matrix`: by kind of request. `steps`: greedy ones, then other parameters at the middle number of rows."""

    bench: str = "gpu"
    shape: str
    device: DeviceFacts
    matrix: list[Answers]
    steps: list[StepTime]
    profile: Profile | None
    settings: dict[str, Any]
    machine: Machine


class GpuBench(Command):
    """Drives one `LLM` after another."""

    summary = "GPU: tokens compared with the CPU's, steps with the memory bandwidth, and a profile."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--device", default="auto", metavar="DEVICE", help="Device to measure [default: auto]."
        )
        parser.add_argument(
            "--shape",
            choices=sorted(LLAMA_SHAPES),
            help="Timed shape [default: 8b, tiny on a CPU].",
        )
        parser.add_argument(
            "--rows", type=counts, metavar="N,…", help="Rows of timed steps [default: 1,64,256]."
        )
        add_count_flags(
            parser,
            ("--prompt-len", 128, "Tokens of each prompt"),
            ("--output-len", 48, "Tokens of each answer"),
        )
        parser.add_argument(
            "--no-matrix", action="store_true", help="Skip the comparison with the CPU."
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")

    def run(self, args: argparse.Namespace) -> int:
        machine = describe_machine()
        facts = device_facts(args.device)
        is_cpu = facts.device == "cpu"
        shape = args.shape or ("tiny" if is_cpu else "8b")
        rows = args.rows or (REHEARSED_ROWS if is_cpu else ROWS)
        with tempfile.TemporaryDirectory() as folder:
            tiny, big = Path(folder, "tiny"), Path(folder, "timed")
            for path, name in ((tiny, "tiny"), (big, shape)):
                path.mkdir()
                write_shape(name, path)
            matrix = [] if args.no_matrix else compared(tiny, facts.device)
            dtype = "float32" if is_cpu else "bfloat16"
            steps, profile = timed(big, facts, dtype, rows, (args.prompt_len, args.output_len))
        report = GpuReport(
            shape=shape, device=facts, matrix=matrix, steps=steps, profile=profile, machine=machine,
            settings={"dtype": dtype, "prompt_len": args.prompt_len, "output_len": args.output_len},
        )  # fmt: skip
        print(describe(report))
        write_report(args.json, report)
        return 0 if all(each.same for each in matrix) else 1


def describe(report: GpuReport) -> str:
    """The report for a person, as one table."""
    device = report.device
    lines = [
        f"{device.name}, torch {device.torch}, Triton {device.triton or 'none'}, reads {device.read_gb_s:,.0f} GB/s",
        f"tokens of {len(report.matrix)} kinds of requests: "
        + (", ".join(each.text for each in report.matrix if not each.same) or "those of the CPU"),
        f"{report.shape} in {report.settings['dtype']}",
        f"  {'rows':>5} {'parameters':24} {'ms/step':>9} {'floor ms':>9} {'of floor':>9} {'tok/s':>10}",
    ]
    lines += [
        f"  {each.rows:5} {each.params:24} {each.step_ms:9.3f} {each.floor_ms:9.3f} {each.share:9.1%} "
        f"{each.tok_s:10,.1f}"
        for each in report.steps
    ]
    if report.profile is not None:
        lines.append(
            f"  profile of {report.profile.rows} rows: {report.profile.operations:,} operations, "
            f"{report.profile.launches:,} launches, {report.profile.waits} waits of the host"
        )
        lines += [
            f"    {each.ms:9.2f} ms {each.calls:6} × {each.name}" for each in report.profile.top
        ]
    return "\n".join([*lines, str(report.machine.pace)])
