"""Report of `tenonry bench serve`: the sums over requests and runs, as a file and as text. Client process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from tenonry.errors import TenonryError
from tenonry_bench.figures import Spread, spread, table
from tenonry_bench.load import LoadRun
from tenonry_bench.machine import Machine
from tenonry_bench.workload import Workload


class ServedResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All runs of one workload. Spreads over runs, percentiles over requests that ended well; `goodput_req_s` counts
    those within every limit. Memory and CPU time are those of all processes of the server, where we started it;
    `server_us_per_tok` is CPU time per output token, `server_cores` how many cores it kept busy.
    """

    workload: str
    runs: int
    requests: int
    concurrency: int | None
    request_rate: float | None
    completed: Spread
    failed: Spread
    wall_s: Spread
    output_tok_s: Spread
    total_tok_s: Spread
    req_s: Spread
    ttft_p50_ms: Spread
    ttft_p99_ms: Spread
    tpot_p50_ms: Spread
    tpot_p99_ms: Spread
    itl_p50_ms: Spread
    itl_p99_ms: Spread
    e2e_p50_ms: Spread
    e2e_p99_ms: Spread
    goodput_req_s: Spread | None = None
    errors: dict[str, int] = {}
    peak_rss_gib: float | None = None
    pss_after_gib: float | None = None
    ready_s: float | None = None
    server_us_per_tok: Spread | None = None
    server_cores: Spread | None = None


class ServeReport(msgspec.Struct, kw_only=True):
    """`peer` and `args` as in the throughput report."""

    bench: str = "serve"
    peer: str
    model: str
    args: dict[str, str]
    goodput: dict[str, float]
    results: list[ServedResult]
    machine: Machine


def summarise(
    name: str, workload: Workload, runs: list[LoadRun], limits: dict[str, float], rate: float | None
) -> ServedResult:
    """Sum the runs of a workload up. Raises TenonryError if no request of a run ended well."""
    errors = dict(sum((Counter(run.errors()) for run in runs), Counter()))
    if not all(run.good for run in runs):
        raise TenonryError(f"{name}: every request of a run failed: {errors}")

    def over_runs(read: Callable[[LoadRun], float]) -> Spread:
        return spread([read(run) for run in runs])

    def latency(what: str, share: float) -> Spread:
        return over_runs(lambda run: run.percentile_ms(what, share))

    cpu = [(run.server_cpu_s, run) for run in runs if run.server_cpu_s is not None]
    return ServedResult(
        workload=name,
        runs=len(runs),
        requests=workload.requests,
        concurrency=workload.concurrency,
        request_rate=rate,
        completed=over_runs(lambda run: len(run.good)),
        failed=over_runs(lambda run: len(run.records) - len(run.good)),
        wall_s=over_runs(lambda run: run.wall_s),
        output_tok_s=over_runs(lambda run: run.output_tokens / run.wall_s),
        total_tok_s=over_runs(
            lambda run: sum(one.output_tokens + one.prompt_tokens for one in run.good) / run.wall_s
        ),
        req_s=over_runs(lambda run: len(run.good) / run.wall_s),
        ttft_p50_ms=latency("ttft_s", 0.5),
        ttft_p99_ms=latency("ttft_s", 0.99),
        tpot_p50_ms=latency("tpot_s", 0.5),
        tpot_p99_ms=latency("tpot_s", 0.99),
        itl_p50_ms=latency("itl_s", 0.5),
        itl_p99_ms=latency("itl_s", 0.99),
        e2e_p50_ms=latency("e2e_s", 0.5),
        e2e_p99_ms=latency("e2e_s", 0.99),
        goodput_req_s=over_runs(
            lambda run: sum(one.meets(limits) for one in run.records) / run.wall_s
        )
        if limits
        else None,
        errors=errors,
        server_us_per_tok=spread([1e6 * seconds / run.output_tokens for seconds, run in cpu])
        if cpu
        else None,
        server_cores=spread([seconds / run.wall_s for seconds, run in cpu]) if cpu else None,
    )


def describe(report: ServeReport) -> str:
    """The report for a person."""
    header = (
        "workload",
        "req/s",
        "output tok/s",
        "TTFT p50/p99 ms",
        "ITL p50/p99 ms",
        "E2E p50/p99 ms",
        "failed",
    )
    rows = []
    for result in report.results:
        pairs = [
            (result.ttft_p50_ms, result.ttft_p99_ms),
            (result.itl_p50_ms, result.itl_p99_ms),
            (result.e2e_p50_ms, result.e2e_p99_ms),
        ]
        cells = [f"{low.median:.1f} / {high.median:.1f}" for low, high in pairs]
        rows.append(
            (
                result.workload,
                result.req_s.text(2),
                result.output_tok_s.text(1),
                *cells,
                f"{result.failed.median:g}",
            )
        )
    lines = [f"{report.peer}, {report.model}: medians over runs (min–max)", table(header, rows)]
    for result in report.results:
        if result.goodput_req_s is not None:
            lines.append(
                f"{result.workload}: goodput {result.goodput_req_s.text(2)} requests per second within {report.goodput}"
            )
        if result.server_us_per_tok is not None and result.server_cores is not None:
            cpu, cores = result.server_us_per_tok.text(1), result.server_cores.text(2)
            lines.append(
                f"{result.workload}: server CPU {cpu} µs per output token, {cores} cores busy"
            )
        lines += [f"{result.workload}: {number} × {text}" for text, number in result.errors.items()]
    return "\n".join(lines)
