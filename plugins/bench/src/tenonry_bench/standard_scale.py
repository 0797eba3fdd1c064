"""Runs of the standard set about several engines, and their rows: cost, start and cache. Pure."""

from __future__ import annotations

from typing import Any

from tenonry_bench.standard_figures import Figure, as_spread

COORDINATOR_RATIO = 1.05  # CPU time per token, over round robin without a coordinator
START_RATIO = 2.2  # four engines over one, on two cores
AFFINITY_RATIO = 0.9  # hit rate of several engines over that of one with all the blocks


QUICK = {
    "start-engines": "--sizes 1,2",
    "data-parallel": "--sizes 1 --streams 4 --output-len 8",
    "affinity": "--conversations 4 --turns 2 --engines 2 --system-len 16 --user-len 8,24 --answer-len 8",
}
SERVERS = ("--worker null", "--worker null --data-parallel-size 4 --api-server-count 2")
SERVED = "--name W6 --requests 512 --concurrency 128"
SERVED_QUICK = "--name W6 --requests 8 --prompt-len 8 --output-len 4 --concurrency 4"


def scale_commands(model: str, *, quick: bool) -> dict[str, list[str]]:
    """Part to words of `tenonry bench`."""
    return {
        part: [part, "--model", model, *(words.split() if quick else [])]
        for part, words in QUICK.items()
    }


def server_commands(model: str, *, quick: bool) -> dict[str, list[str]]:
    """Title to words of `tenonry bench`: one server with one engine, and several with several."""
    words = (SERVED_QUICK if quick else SERVED).split()
    return {
        f"serve, {flags}": ["serve", "--model", model, f"--server-args={flags}", *words]
        for flags in SERVERS
    }


def data_parallel_rows(report: dict[str, Any]) -> list[Figure]:
    """Rate, CPU per token and cores of each layout, and the coordinator's cost."""
    rows = []
    for result in report["results"]:
        label = f"data parallel, {result['layout']}"
        rows += [
            Figure(label=f"{label}: tokens/s", key="", ours=as_spread(result["tok_s"]), digits=0),
            Figure(
                label=f"{label}: CPU µs/token",
                key="",
                ours=as_spread(result["us_per_tok"]),
                digits=2,
            ),
            Figure(label=f"{label}: cores busy", key="", ours=as_spread(result["cores"]), digits=2),
        ]
    ratio = as_spread(report["coordinator_ratio"])
    rows.append(
        Figure(
            label="coordinator and affinity over round robin, CPU/token",
            key="",
            ours=ratio,
            bound=COORDINATOR_RATIO,
        )
    )
    return rows


def start_rows(report: dict[str, Any]) -> list[Figure]:
    """Seconds of the first number of engines, and how many times longer the others take."""
    first, *others = report["results"]
    one = first["engines"]
    rows = [
        Figure(
            label=f"start of engines, {one}: ready, s",
            key="",
            ours=as_spread(first["ready_s"]),
            digits=2,
        )
    ]
    for other in others:
        bound = START_RATIO if (one, other["engines"]) == (1, 4) else None
        label = f"start of engines, {other['engines']} over {one}"
        rows.append(
            Figure(label=label, key="", ours=as_spread(other["ratio"]), digits=2, bound=bound)
        )
    return rows


def affinity_rows(report: dict[str, Any]) -> list[Figure]:
    """The single engine's hit rate, and the others' share of it."""
    single, *others = report["results"]
    rows = [
        Figure(
            label=f"prefix hit rate, {single['layout']}",
            key="hit_rate",
            ours=as_spread(single["hit_rate"]),
        )
    ]
    for other in others:
        bound = AFFINITY_RATIO if other["load_balancing"] == "affinity" else None
        label = f"prefix hit rate, {other['layout']} over 1 engine"
        rows.append(
            Figure(label=label, key="hit_rate", ours=as_spread(other["ratio"]), bound=bound)
        )
    return rows


def served_rows(report: dict[str, Any]) -> list[Figure]:
    """Rate, CPU per token and cores of a server of ours."""
    rows = []
    for result in report["results"]:
        label = f"served, {report['args']['server_args']}"
        rows += [
            Figure(
                label=f"{label}: tokens/s", key="", ours=as_spread(result["output_tok_s"]), digits=0
            ),
            Figure(
                label=f"{label}: CPU µs/token",
                key="",
                ours=as_spread(result["server_us_per_tok"]),
                digits=2,
            ),
            Figure(
                label=f"{label}: cores busy",
                key="",
                ours=as_spread(result["server_cores"]),
                digits=2,
            ),
        ]
    return rows
