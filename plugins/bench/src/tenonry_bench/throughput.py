"""`tenonry bench throughput`: a workload file through the blocking `LLM`, on a real model, in this process."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tenonry.errors import ConfigError, TenonryError
from tenonry.interfaces.command import Command
from tenonry.sampling_params import SamplingParams
from tenonry_bench.figures import Spread, percentile, spread, table
from tenonry_bench.machine import Machine, describe_machine, physical_cores, torch_threads
from tenonry_bench.processes import PeakMemory
from tenonry_bench.settings import check_length, count, engine_config, settings_of, write_report
from tenonry_bench.workload import WARM_UP_RUN, WorkloadFile, load_workloads
from tenonry_commands.arguments import add_engine_arguments

if TYPE_CHECKING:
    from tenonry.client.llm import LLM
    from tenonry.outputs import RequestOutput

WARM_UP_REQUESTS, WARM_UP_TOKENS = 4, 4


class OfflineRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one workload; times in seconds, `ttft` and `tpot` one per request."""

    wall: float
    requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    ttft: list[float]
    tpot: list[float]


class WorkloadResult(msgspec.Struct, kw_only=True):
    """All runs of one workload. Spreads are over runs; TTFT counts from the moment a request was handed over."""

    workload: str
    runs: int
    wall_s: Spread
    output_tok_s: Spread
    total_tok_s: Spread
    req_s: Spread
    ttft_p50_ms: Spread
    ttft_p99_ms: Spread
    tpot_p50_ms: Spread
    tpot_p99_ms: Spread
    cached_tokens: Spread
    peak_rss_gib: float
    pss_after_gib: float
    load_s: float


class ThroughputReport(msgspec.Struct, kw_only=True):
    """`peer` and `args` follow the format of the peers' harness, so that its tables can include this file."""

    bench: str = "throughput"
    peer: str = "tenonry"
    model: str
    args: dict[str, str]
    results: list[WorkloadResult]
    settings: dict[str, Any]
    machine: Machine


class ThroughputBench(Command):
    """Drives `LLM` over workloads; the model is real."""

    summary = "Workload file on a real model with `LLM`: tokens per second, latencies, memory."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--workload", metavar="FILE", help="Workload file [default: the one of this package]."
        )
        parser.add_argument(
            "--name", metavar="W1,W2", help="Workloads to run [default: all offline ones]."
        )
        parser.add_argument(
            "--runs", type=count, default=3, metavar="N", help="Repetitions [default: 3]."
        )
        parser.add_argument(
            "--threads",
            type=count,
            metavar="N",
            help="Threads of torch [default: OMP_NUM_THREADS, or physical cores].",
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        workloads = load_workloads(args.workload)
        names = workloads.named(args.name, "offline")
        if not names:
            raise ConfigError(
                "there is no workload to run; name some with --name, or give another --workload"
            )
        config, facts = engine_config(args)
        for name in names:
            check_length(config, workloads.get(name).prompt_len, workloads.get(name).out_len)
        set_threads(args.threads)
        machine = describe_machine()
        from tenonry.client.llm import LLM

        started = time.perf_counter()
        with LLM(config=config) as llm:
            load_s = time.perf_counter() - started
            runner = OfflineRunner(llm, workloads, facts.vocab_size)
            results = [runner.measure(name, args.runs, load_s) for name in names]
            machine.torch_threads = torch_threads()
        print(describe(config.model, results))
        write_report(
            args.json,
            ThroughputReport(
                model=config.model,
                args={"model": config.model},
                results=results,
                settings=settings_of(config),
                machine=machine,
            ),
        )
        return 0


class OfflineRunner:
    """Runs workloads on one `LLM`."""

    def __init__(self, llm: LLM, workloads: WorkloadFile, vocab_size: int) -> None:
        self._llm = llm
        self._workloads = workloads
        self._vocab_size = vocab_size

    def measure(self, name: str, runs: int, load_s: float) -> WorkloadResult:
        """Warm up with a few short requests, then run the whole workload `runs` times, each with new prompts."""
        requests = self._workloads.get(name).requests
        self.once(name, WARM_UP_RUN, min(requests, WARM_UP_REQUESTS), WARM_UP_TOKENS)
        with PeakMemory() as memory:
            done = [self.once(name, run) for run in range(runs)]
        return summarise(name, done, memory, load_s)

    def once(
        self, name: str, run: int, requests: int | None = None, out_len: int | None = None
    ) -> OfflineRun:
        """One run. Raises TenonryError if a request failed or was cut short."""
        prompts = self._workloads.prompts(name, run, requests, self._vocab_size)
        wanted = out_len or self._workloads.get(name).out_len
        params = SamplingParams(temperature=0.0, max_tokens=wanted, ignore_eos=True)
        started = time.perf_counter()
        outputs = self._llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
        )
        wall = time.perf_counter() - started
        for output in outputs:
            check_output(output, wanted)
        times = [output.metrics for output in outputs if output.metrics is not None]
        return OfflineRun(
            wall=wall,
            requests=len(prompts),
            prompt_tokens=sum(map(len, prompts)),
            output_tokens=len(prompts) * wanted,
            cached_tokens=sum(output.num_cached_tokens for output in outputs),
            ttft=[time.first_token_time - time.arrival_time for time in times],
            tpot=[
                (time.last_token_time - time.first_token_time) / max(1, wanted - 1)
                for time in times
            ],
        )


def check_output(output: RequestOutput, wanted: int) -> None:
    """Raise TenonryError unless the request produced exactly `wanted` tokens."""
    got = len(output.outputs[0].token_ids) if output.outputs else 0
    if got != wanted:
        raise TenonryError(
            f"request {output.request_id} produced {got} of {wanted} tokens: {output.error or 'no error given'}"
        )


def set_threads(threads: int | None) -> None:
    """Set torch's number of threads before torch is loaded: one per physical core unless it is set already."""
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_NUM_THREADS", str(physical_cores()))


def summarise(
    name: str, runs: list[OfflineRun], memory: PeakMemory, load_s: float
) -> WorkloadResult:
    """Sum the runs of a workload up."""

    def over_runs(read: Callable[[OfflineRun], float]) -> Spread:
        return spread([read(run) for run in runs])

    return WorkloadResult(
        workload=name,
        runs=len(runs),
        wall_s=over_runs(lambda run: run.wall),
        output_tok_s=over_runs(lambda run: run.output_tokens / run.wall),
        total_tok_s=over_runs(lambda run: (run.output_tokens + run.prompt_tokens) / run.wall),
        req_s=over_runs(lambda run: run.requests / run.wall),
        ttft_p50_ms=over_runs(lambda run: 1e3 * percentile(run.ttft, 0.5)),
        ttft_p99_ms=over_runs(lambda run: 1e3 * percentile(run.ttft, 0.99)),
        tpot_p50_ms=over_runs(lambda run: 1e3 * percentile(run.tpot, 0.5)),
        tpot_p99_ms=over_runs(lambda run: 1e3 * percentile(run.tpot, 0.99)),
        cached_tokens=over_runs(lambda run: run.cached_tokens),
        peak_rss_gib=memory.rss_bytes / 2**30,
        pss_after_gib=memory.pss_bytes / 2**30,
        load_s=load_s,
    )


def describe(model: str, results: list[WorkloadResult]) -> str:
    """The results for a person."""
    header = (
        "workload",
        "output tok/s",
        "total tok/s",
        "wall s",
        "TTFT p50 ms",
        "TTFT p99 ms",
        "TPOT p50 ms",
        "RSS GiB",
    )
    rows = [
        (
            result.workload,
            result.output_tok_s.text(1),
            result.total_tok_s.text(1),
            result.wall_s.text(2),
            result.ttft_p50_ms.text(1),
            result.ttft_p99_ms.text(1),
            result.tpot_p50_ms.text(2),
            f"{result.peak_rss_gib:.2f}",
        )
        for result in results
    ]
    return f"{model}: median (min–max)\n" + table(header, rows)
