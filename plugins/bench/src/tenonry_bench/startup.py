"""`tenonry bench startup`: cold process to first token, `import tenonry`, `tenonry --help`; each in fresh processes."""

from __future__ import annotations

import argparse
import shlex
import sys

import msgspec

from tenonry.interfaces.command import Command
from tenonry_bench.figures import Spread, spread
from tenonry_bench.first_token import MARKER
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.processes import seconds_to_run, seconds_until, tenonry_command
from tenonry_bench.settings import count, natural, write_report


class StartupReport(msgspec.Struct, kw_only=True):
    """Wall seconds. `startup_s`: process start to the first generated token; `import_s`: `import tenonry` over a bare
    interpreter; `help_s`: `tenonry --help`.
    """

    bench: str = "startup"
    model: str
    startup_s: Spread | None
    import_s: Spread
    bare_python_s: Spread
    help_s: Spread
    machine: Machine


class StartupBench(Command):
    """Starts processes and waits for them."""

    summary = "Cold start: process to first token, `import tenonry`, `tenonry --help`."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--model", default="demo", help="Model of the first token [default: demo]."
        )
        parser.add_argument(
            "--engine-args",
            default="",
            metavar="TEXT",
            help="Engine flags as one argument: '--worker null'.",
        )
        parser.add_argument(
            "--runs",
            type=natural,
            default=3,
            metavar="N",
            help="Runs to the first token; 0 skips them [default: 3].",
        )
        parser.add_argument(
            "--quick-runs",
            type=count,
            default=9,
            metavar="N",
            help="Runs of the import and of --help [default: 9].",
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")

    def run(self, args: argparse.Namespace) -> int:
        machine = describe_machine()
        bare, imports = measure_import(args.quick_runs)
        helps = [seconds_to_run([*tenonry_command(), "--help"]) for _ in range(args.quick_runs)]
        first = [measure_first_token(args.model, args.engine_args) for _ in range(args.runs)]
        report = StartupReport(
            model=args.model,
            startup_s=spread(first) if first else None,
            import_s=spread(imports),
            bare_python_s=spread(bare),
            help_s=spread(helps),
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


def measure_import(runs: int) -> tuple[list[float], list[float]]:
    """(seconds of a bare interpreter, additional seconds of `import tenonry`); the two alternate."""
    bare, imports = [], []
    # From now on the files are in the page cache.
    seconds_to_run([sys.executable, "-c", "import tenonry"])
    for _ in range(runs):
        bare.append(seconds_to_run([sys.executable, "-c", "pass"]))
        imports.append(seconds_to_run([sys.executable, "-c", "import tenonry"]) - bare[-1])
    return bare, imports


def measure_first_token(model: str, engine_args: str) -> float:
    """Seconds from the start of a process to its first token."""
    command = [
        sys.executable,
        "-m",
        "tenonry_bench.first_token",
        "--model",
        model,
        *shlex.split(engine_args),
    ]
    return seconds_until(command, MARKER)


def describe(report: StartupReport) -> str:
    """The report for a person."""
    lines = [f"start-up, seconds, median (min–max), model {report.model}"]
    if report.startup_s is not None:
        lines.append(f"  process to first token       {report.startup_s.text(2)}")
    lines.append(f"  import tenonry, over Python  {report.import_s.text(3)}")
    lines.append(f"  tenonry --help               {report.help_s.text(3)}")
    return "\n".join([*lines, str(report.machine.pace)])
