"""`tenonry bench serve`: load over HTTP on any OpenAI-compatible server, or on one of ours that it starts itself."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import statistics
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import psutil

from tenonry.errors import ConfigError, TenonryError
from tenonry.interfaces.command import Command
from tenonry_bench.load import Load, LoadRun, parse_limits
from tenonry_bench.machine import describe_machine
from tenonry_bench.own_server import ServerProcess, start_own_server
from tenonry_bench.processes import CpuMeter, PeakMemory, below
from tenonry_bench.served import ServedResult, ServeReport, describe, summarise
from tenonry_bench.settings import count, natural, write_report
from tenonry_bench.sse import Client, Endpoint
from tenonry_bench.traces import TracedRequest, prompts, read_trace, starts
from tenonry_bench.workload import WARM_UP_RUN, Workload, WorkloadFile, load_workloads

WARM_UP_REQUESTS, WARM_UP_TOKENS = 8, 8
DEFAULT_CONCURRENCY = 16
TRACE = "trace"  # name of the result


class ServedModel(msgspec.Struct):
    """One entry of GET /v1/models."""

    id: str


class ServedModels(msgspec.Struct):
    """The answer of GET /v1/models."""

    data: list[ServedModel]


class ServeBench(Command):
    """Many clients, one server."""

    summary = "HTTP load on an OpenAI-compatible server; starts `tenonry serve` without --base-url."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        self._add_server(parser.add_argument)
        self._add_load(parser.add_argument)
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")

    def _add_server(self, add: Callable[..., object]) -> None:
        """The one under load, or one of our own."""
        add(
            "--base-url",
            metavar="URL",
            help="Server under load [default: start `tenonry serve MODEL`].",
        )
        add(
            "--model",
            metavar="NAME",
            help="Model to serve, or its name on the server [default: demo, or the server's first].",
        )
        add("--api-key", metavar="KEY", help="Sent as a bearer token.")
        add(
            "--timeout",
            type=float,
            default=600.0,
            metavar="S",
            help="Timeout of a request and of the start in seconds [default: 600].",
        )
        add(
            "--port",
            type=natural,
            default=0,
            help="Port of the started server; 0 picks a free one [default: 0].",
        )
        add(
            "--server-args",
            default="",
            metavar="TEXT",
            help="Flags of the started server as one argument: '--data-parallel-size 4 --worker null'.",
        )

    def _add_load(self, add: Callable[..., object]) -> None:
        add("--workload", metavar="FILE", help="Workload file [default: the one of this package].")
        add("--name", metavar="W6", help="Workloads to run [default: all served ones].")
        add("--requests", type=count, metavar="N", help="Instead of the workload's own number.")
        add("--prompt-len", type=count, metavar="N", help="Instead of the workload's own length.")
        add("--output-len", type=count, metavar="N", help="Instead of the workload's own length.")
        add(
            "--concurrency",
            type=count,
            metavar="N",
            help="Concurrent requests [default: the workload's].",
        )
        add(
            "--request-rate",
            type=float,
            metavar="X",
            help="Requests per second at random times, instead of fixed concurrency.",
        )
        add(
            "--trace",
            action="append",
            metavar="FILE",
            help="Send the requests of a trace at their times instead of workloads: a file of the stat logger `jsonl`. "
            "Repeatable.",
        )
        add(
            "--speed",
            type=float,
            default=1.0,
            metavar="X",
            help="Speed factor of the trace [default: 1].",
        )
        add("--runs", type=count, default=3, metavar="N", help="Repetitions [default: 3].")
        add(
            "--goodput",
            action="append",
            metavar="LIMIT=MS",
            help="Count requests within ttft_ms, tpot_ms, itl_ms, e2e_ms.",
        )
        add(
            "--vocab-size",
            type=natural,
            default=0,
            metavar="N",
            help="Largest prompt token id plus one, if below the file's.",
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.request_rate is not None and args.request_rate <= 0:
            raise ConfigError(f"--request-rate {args.request_rate} must be above 0")
        limits = parse_limits(args.goodput)
        workloads = load_workloads(args.workload)
        names = [] if args.trace else workloads.named(args.name, "served")
        trace = traced(args)
        if not names and not trace:
            raise ConfigError(
                "there is no served workload to run; name some with --name, or give another --workload"
            )
        machine = describe_machine()
        server = (
            None
            if args.base_url
            else start_own_server(args.model or "demo", args.port, shlex.split(args.server_args))
        )
        try:
            model, results = asyncio.run(measure(args, workloads, names, trace, limits, server))
        finally:
            if server is not None:
                server.stop()
        peer = "tenonry" if server is not None else args.base_url
        asked = {"model": model} | ({"server_args": args.server_args} if server is not None else {})
        report = ServeReport(
            peer=peer, model=model, args=asked, goodput=limits, results=results, machine=machine
        )
        print(describe(report))
        write_report(args.json, report)
        return 0 if all(result.failed.max == 0 for result in results) else 1


async def measure(
    args: argparse.Namespace,
    workloads: WorkloadFile,
    names: list[str],
    trace: list[TracedRequest],
    limits: dict[str, float],
    server: ServerProcess | None,
) -> tuple[str, list[ServedResult]]:
    """(the model's name on the server, one result per workload, or one of the trace)."""
    url, ready_s = (args.base_url, None) if server is None else await server.ready(args.timeout)
    client = Client(Endpoint.parse(url), args.api_key)
    model = args.model if server is None and args.model else await first_model(client)
    vocab_size = args.vocab_size or (vocabulary(args.model or "demo") if server is not None else 0)
    meter = None if server is None else CpuMeter([psutil.Process(server.pid), *below(server.pid)])
    results = []
    for name in names or [TRACE]:
        chosen = workload_from(args, workloads.get(name)) if names else of_trace(trace)
        load = Load(
            client,
            model,
            chosen.concurrency,
            args.request_rate,
            timeout_s=args.timeout,
            seed=workloads.seed,
        )
        changed = msgspec.structs.replace(workloads, workloads={name: chosen})
        with PeakMemory(server.pid if server is not None else None) as memory:
            if names:
                runs = await run_workload(load, changed, name, args.runs, vocab_size, meter)
            else:
                runs = await run_trace(load, changed, trace, args, vocab_size, meter)
        result = summarise(name, chosen, runs, limits, args.request_rate)
        if server is not None:
            result.peak_rss_gib, result.pss_after_gib = (
                memory.rss_bytes / 2**30,
                memory.pss_bytes / 2**30,
            )
            result.ready_s = ready_s
        results.append(result)
    return model, results


async def run_workload(
    load: Load,
    workloads: WorkloadFile,
    name: str,
    runs: int,
    vocab_size: int,
    meter: CpuMeter | None,
) -> list[LoadRun]:
    """Warm up with a few short requests, then do the runs, each with new prompts. `meter`: of the server's time."""
    workload = workloads.get(name)
    await warm_up(load, workloads, name, vocab_size)
    prompts = [workloads.prompts(name, run, vocab_size=vocab_size) for run in range(runs)]
    return [await metered(load.run(each, workload.out_len), meter) for each in prompts]


async def run_trace(
    load: Load,
    workloads: WorkloadFile,
    trace: list[TracedRequest],
    args: argparse.Namespace,
    vocab_size: int,
    meter: CpuMeter | None,
) -> list[LoadRun]:
    """Warm up with a few short requests, then do the runs of the trace, each with new prompts."""
    await warm_up(load, workloads, TRACE, vocab_size)
    lengths, times = [each.output_tokens for each in trace], starts(trace, args.speed)
    seeds = [workloads.seed * 1000 + run for run in range(args.runs)]
    runs = []
    for seed in seeds:  # the prompts of one run at a time are in memory
        made = prompts(trace, workloads.token_range, seed, vocab_size)
        runs.append(await metered(load.run(made, lengths, times), meter))
    return runs


async def warm_up(load: Load, workloads: WorkloadFile, name: str, vocab_size: int) -> None:
    """A few short requests."""
    workload = workloads.get(name)
    number = min(WARM_UP_REQUESTS, workload.requests)
    await load.run(
        workloads.prompts(name, WARM_UP_RUN, number, vocab_size),
        min(WARM_UP_TOKENS, workload.out_len),
    )


async def metered(run: Awaitable[LoadRun], meter: CpuMeter | None) -> LoadRun:
    """The run, with the CPU time that the server took for it."""
    if meter is None:
        return await run
    meter.take()  # the time since the last run belongs to no run
    done = await run
    done.server_cpu_s = meter.take()[1]
    return done


def traced(args: argparse.Namespace) -> list[TracedRequest]:
    """Requests of the traces that flags name. Raises ConfigError for flags that do not go with them."""
    if not args.speed > 0:
        raise ConfigError(f"--speed {args.speed} must be above 0")
    if not args.trace:
        return []
    others = ("workload", "name", "requests", "prompt_len", "output_len", "request_rate")
    for name in others:
        if getattr(args, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} does not go with --trace, which sets it; leave one out")
    return read_trace(args.trace)


def of_trace(trace: list[TracedRequest]) -> Workload:
    """A workload of the number and the mean lengths of a trace. Its load is open."""
    mean = {
        name: round(statistics.fmean(getattr(each, f"{key}_tokens") for each in trace))
        for name, key in (("prompt_len", "prompt"), ("out_len", "output"))
    }
    return Workload(len(trace), **mean, kind="served")


def workload_from(args: argparse.Namespace, workload: Workload) -> Workload:
    """Workload with the changes of the flags. An open load has no concurrency."""
    changes: dict[str, Any] = {
        "requests": args.requests,
        "prompt_len": args.prompt_len,
        "out_len": args.output_len,
        "concurrency": args.concurrency,
    }
    changed = msgspec.structs.replace(
        workload, **{key: value for key, value in changes.items() if value is not None}
    )
    if changed.shared_prefix_len >= changed.prompt_len:
        raise ConfigError(
            f"--prompt-len {changed.prompt_len} must be above the {changed.shared_prefix_len} shared tokens"
        )
    default = None if args.request_rate else changed.concurrency or DEFAULT_CONCURRENCY
    return msgspec.structs.replace(changed, concurrency=args.concurrency or default)


async def first_model(client: Client) -> str:
    """The first name that the server lists. Raises TenonryError if it lists none."""
    try:
        status, body = await client.get("/v1/models")
        if status != 200:
            raise TenonryError(
                f"GET /v1/models: status {status}; give --model, and --api-key if the server asks for one"
            )
        return msgspec.json.decode(body, type=ServedModels).data[0].id
    except (OSError, msgspec.DecodeError, IndexError) as error:
        raise TenonryError(
            f"GET /v1/models: {error}; is this an OpenAI-compatible server? Otherwise give --model"
        ) from None


def vocabulary(model: str) -> int:
    """Size of the vocabulary of a model that we serve."""
    from tenonry.config.sources import make_config
    from tenonry.plugin.manager import PluginManager

    config = make_config({"model": model})
    return PluginManager(config.plugins).resolve_model(config).vocab_size
