"""The command `tenonry bench`: one sub-verb per kind of measurement, and the standard set when none is given.

Runs in the process that measures. This module imports nothing but the interface; a sub-verb's module is imported once
the verb `bench` was chosen.
"""

from __future__ import annotations

import argparse
import importlib

from tenonry.interfaces.command import Command

STANDARD = "tenonry_bench.standard:StandardBench"
VERBS = {
    "engine": "tenonry_bench.engine:EngineBench",
    "overhead": "tenonry_bench.overhead:OverheadBench",
    "adapters": "tenonry_bench.adapters:AdaptersBench",
    "structured": "tenonry_bench.structured:StructuredBench",
    "throughput": "tenonry_bench.throughput:ThroughputBench",
    "models": "tenonry_bench.models.bench:ModelsBench",
    "gguf": "tenonry_bench.gguf:GgufBench",
    "workers": "tenonry_bench.workers:WorkersBench",
    "serve": "tenonry_bench.serve:ServeBench",
    "dev": "tenonry_bench.dev:DevBench",
    "scheduler": "tenonry_bench.scheduler:SchedulerBench",
    "executor": "tenonry_bench.executor:ExecutorBench",
    "restore": "tenonry_bench.restore:RestoreBench",
    "embeddings": "tenonry_bench.embeddings:EmbeddingsBench",
    "helpers": "tenonry_bench.helpers:HelpersBench",
    "neighbours": "tenonry_bench.neighbours:NeighboursBench",
    "soak": "tenonry_bench.soak:SoakBench",
    "gpu": "tenonry_bench.gpu:GpuBench",
    "sleep": "tenonry_bench.sleep:SleepBench",
    "loading": "tenonry_bench.loading:LoadingBench",
    "startup": "tenonry_bench.startup:StartupBench",
    "start-engines": "tenonry_bench.start_engines:StartEnginesBench",
    "data-parallel": "tenonry_bench.data_parallel:DataParallelBench",
    "affinity": "tenonry_bench.affinity:AffinityBench",
}


class BenchCommand(Command):
    """`tenonry bench [VERB]`."""

    summary = "Measure tenonry or its parts, and compare with other engines."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        standard = load_verb(STANDARD)
        standard.add_arguments(parser)
        parser.set_defaults(bench_verb=standard)
        verbs = parser.add_subparsers(
            title="what to measure (all of it by default)", metavar="WHAT"
        )
        for name, target in VERBS.items():
            verb = load_verb(target)
            child = verbs.add_parser(name, help=verb.summary, description=verb.summary)
            verb.add_arguments(child)
            child.set_defaults(bench_verb=verb)

    def run(self, args: argparse.Namespace) -> int:
        verb: Command = args.bench_verb
        return verb.run(args)


def load_verb(target: str) -> Command:
    """The sub-verb that "module:Class" names."""
    module, _, name = target.partition(":")
    verb: Command = getattr(importlib.import_module(module), name)()
    return verb
