"""Figures of a workload's runs: one or two, and their ratio to each peer. The measuring process."""

from __future__ import annotations

import msgspec

from tenonry_bench.figures import Spread, percentile, spread
from tenonry_bench.models.engines import OURS
from tenonry_bench.workload import Workload

PREFILL = (
    8  # prompts with this many times more tokens of their own than generated ones are counted, too
)


class Run(msgspec.Struct, kw_only=True):
    """One run in seconds; `ready_s`: start time of its server, if there is one, the same in all runs."""

    wall: float
    ttft: list[float] = []
    ready_s: float = 0.0


Values = dict[str, list[Run]]


class Result(msgspec.Struct, kw_only=True):
    """One figure of one workload: engine to its spread over runs. `ratios`: peer to how many times better tenonry is,
    run by run: times faster, or times sooner.
    """

    model: str
    workload: str
    figure: str
    more_is_better: bool
    engines: dict[str, Spread]
    ratios: dict[str, Spread]


def results_of(model: str, name: str, workload: Workload, values: Values) -> list[Result]:
    """Results of a workload: seconds for a start, tokens per second for everything else; also the first token if
    prompts dominate or a server answers.
    """
    length = max((len(runs) for runs in values.values()), default=0)
    whole = {engine: runs for engine, runs in values.items() if len(runs) == length}

    def result(figure: str, numbers: dict[str, list[float]], *, more_is_better: bool) -> Result:
        return Result(
            model=model,
            workload=name,
            figure=figure,
            more_is_better=more_is_better,
            engines={engine: spread(each) for engine, each in numbers.items()},
            ratios=ratios(numbers, more_is_better=more_is_better),
        )

    walls = {engine: [run.wall for run in runs] for engine, runs in whole.items()}
    if workload.kind == "startup":
        return [result("first token of a new process, s", walls, more_is_better=False)]
    is_prefill = workload.prompt_len - workload.shared_prefix_len > PREFILL * workload.out_len
    counted = workload.out_len + (workload.prompt_len if is_prefill else 0)
    tokens = workload.requests * counted
    speeds = {engine: [tokens / wall for wall in each] for engine, each in walls.items()}
    figure = "tok/s with prompts" if is_prefill else "tok/s"
    found = [result(figure, speeds, more_is_better=True)]
    if is_prefill or workload.kind == "served":
        first = {
            engine: [1e3 * percentile(run.ttft, 0.5) for run in runs]
            for engine, runs in whole.items()
        }
        found.append(result("first token p50, ms", first, more_is_better=False))
    if workload.kind == "served":
        starts = {engine: [runs[0].ready_s] for engine, runs in whole.items()}
        found.append(result("server ready, s", starts, more_is_better=False))
    return found


def ratios(numbers: dict[str, list[float]], *, more_is_better: bool) -> dict[str, Spread]:
    """Peer to how many times better tenonry is."""
    found = {}
    mine = numbers.get(OURS, [])
    for engine, theirs in numbers.items():
        if engine != OURS and len(mine) == len(theirs):
            pairs = zip(mine, theirs, strict=True)
            found[engine] = spread([a / b if more_is_better else b / a for a, b in pairs])
    return found
