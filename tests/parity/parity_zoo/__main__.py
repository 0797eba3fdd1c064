"""`python -m parity_zoo`: the zoo from the command line; `dev.py bench parity` runs it."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import msgspec

from parity_zoo import page, table
from parity_zoo.build import GROUPS
from parity_zoo.process import Ended, run_all
from parity_zoo.zoo import Report

WORKERS = ("auto", "torch")
# What every type's process runs; imported there, it would be a quarter of its time.
SERVING = (
    "tenonry.client",
    "tenonry.engine",
    "tenonry_executor_uniproc",
    "tenonry_grammars",
    "tenonry_hf_hub",
    "tenonry_kvcache",
    "tenonry_scheduler_batching",
    "tenonry_scheduling",
    "tenonry_torch_base",
    "tenonry_worker_auto",
    "tenonry_worker_torch",
    "tenonry_worker_transformers",
)


def main(words: Sequence[str] | None = None) -> int:
    """Run the types asked for, print a line each, write the page; exit status 1 if one is wrong or crashes."""
    options = _parser().parse_args(words)
    _prepare()
    import torch

    from parity_zoo import zoo
    from parity_zoo.build import group_of, types_of

    workers = options.workers.split(",")
    names = options.only.split(",") if options.only else types_of(options.group)
    for name in names:
        if name not in types_of(group_of(name)):
            sys.exit(f"the installed transformers has no type {name} (group {group_of(name)})")
    reports = []

    def work(name: str) -> bytes:
        torch.get_num_threads()  # sets up the pool of a forked process; threads that load would race for it
        return msgspec.json.encode(zoo.report(name, workers))

    for ended in run_all(work, names, jobs=options.jobs):
        report = _read(ended, workers)
        reports.append(report)
        print(table.line(report), flush=True)
    reports.sort(key=lambda report: report.name)
    if options.json:
        options.json.write_bytes(msgspec.json.encode(reports))
    for worker in workers:
        print(f"{worker}: {table.counts(reports, worker)}")
    if page.DEFAULT_WORKER in workers and options.page:
        import transformers

        page.write(
            options.page,
            reports,
            transformers.__version__,
            whole="" if options.only else options.group,
        )
    kinds = {outcome.kind for report in reports for outcome in report.outcomes.values()}
    return int(bool(kinds & {"wrong", "crash"}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dev.py bench parity", description=__doc__)
    parser.add_argument(
        "--only", metavar="TYPES", help="types by the name in config.json, separated by commas"
    )
    parser.add_argument(
        "--group",
        default="causal",
        choices=list(GROUPS),
        help="which types, without --only (%(default)s)",
    )
    parser.add_argument(
        "--workers", default=",".join(WORKERS), help="workers, separated by commas (%(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="types at a time (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the reports to this file")
    parser.add_argument(
        "--page", type=Path, default=page.PAGE, help="the page to write (%(default)s)"
    )
    return parser


def _prepare() -> None:
    """Import once the modules that every process needs, on one thread, so that a fork is safe and cheap."""
    import torch
    import transformers

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    from parity_zoo import build, oracle, serve  # noqa: F401
    from tenonry import LLM  # noqa: F401

    for package in SERVING:
        _import_all(package)
    oracle.answers(build.tiny_model("llama"), [[20, 21]])


def _import_all(package: str) -> None:
    """The package and every module in it."""
    folder = importlib.import_module(package).__path__
    for module in pkgutil.walk_packages(folder, f"{package}."):
        importlib.import_module(module.name)


def _read(ended: Ended, workers: Sequence[str]) -> Report:
    from parity_zoo.serve import Outcome

    if ended.result:
        found = msgspec.json.decode(ended.result, type=Report)
    else:
        found = Report(
            ended.name, outcomes={worker: Outcome("crash", ended.error) for worker in workers}
        )
    found.seconds = round(ended.seconds, 1)
    return found


if __name__ == "__main__":
    sys.exit(main())
