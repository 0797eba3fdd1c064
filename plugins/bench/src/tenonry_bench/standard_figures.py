"""Rows of the standard set's table, with targets, and their extraction from reports about one engine. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from tenonry_bench.figures import Spread
from tenonry_bench.peers import model_name, more_is_better

# Milliseconds per step of the scheduler alone: (running, validator) → bound of the mean.
SCHEDULER_MS = {(256, False): 0.14, (256, True): 0.25, (1024, False): 0.5, (1024, True): 0.9}
# Bounds of the engine benchmark at 256 streams; tokens per second are asked for as a multiple of the peer's.
ENGINE = {"frontend_us_per_tok": 4.5, "engine_us_per_tok": 3.0}
ENGINE_TIMES_PEER = 3.0
ROUND_TRIP_MS = 0.5
THROUGHPUT_TIMES_PEER = 0.7
STARTUP_S = 5.0
IMPORT_S = 0.25
HELP_S = 0.5
UNITS = {
    "tok_s": "tokens/s",
    "frontend_us_per_tok": "front-end µs/token",
    "engine_us_per_tok": "engine µs/token",
    "ttft_ms": "TTFT ms",
}


class Figure(msgspec.Struct, kw_only=True):
    """One row. `bound`: the target, in the unit of the figure; `times_peer` the same as a multiple of the peer's
    figure. `key` names the peer's figure.
    """

    label: str
    key: str
    ours: Spread
    digits: int = 3
    bound: float | None = None
    times_peer: float | None = None
    peer: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ratio to the peer: above 1 is better than the peer."""
        if self.peer is None or not self.ours.median or not self.peer:
            return None
        return (
            self.ours.median / self.peer
            if more_is_better(self.key)
            else self.peer / self.ours.median
        )

    @property
    def target(self) -> float | None:
        """The bound, from the peer's figure if it is a multiple of that."""
        if self.times_peer is not None:
            return None if self.peer is None else self.times_peer * self.peer
        return self.bound

    @property
    def met(self) -> bool | None:
        """True if the median is on the right side of the target; None without one."""
        if self.target is None:
            return None
        return (
            self.ours.median >= self.target
            if more_is_better(self.key)
            else self.ours.median <= self.target
        )

    def cells(self) -> tuple[str, ...]:
        """Figure, ours, target, met, peer, ratio."""
        digits = self.digits
        target = "–"
        if self.times_peer is not None:
            target = f"≥ {self.times_peer:g} × peer"
        elif self.bound is not None:
            target = f"{'≥' if more_is_better(self.key) else '≤'} {self.bound:g}"
        ours = self.ours.text(digits) if self.ours.n > 1 else f"{self.ours.median:,.{digits}f}"
        peer = "–" if self.peer is None else f"{self.peer:,.{digits}f}"
        ratio = "–" if self.ratio is None else f"{self.ratio:.2f}"
        return (
            self.label,
            ours,
            target,
            {None: "–", True: "yes", False: "NO"}[self.met],
            peer,
            ratio,
        )


def scheduler_rows(report: dict[str, Any]) -> list[Figure]:
    """Mean and p99 of each case."""
    rows = []
    for case in report["results"]:
        running, validator = case["running"], case["validator"]
        switch = "on" if validator else "off"
        label = f"scheduler, {running} running, {case['waiting']:,} waiting, validator {switch}, ms"
        bound = SCHEDULER_MS.get((running, validator))
        key = f"scheduler/{running}"
        rows.append(
            Figure(label=f"{label}: mean", key=key, ours=as_spread(case["mean_ms"]), bound=bound)
        )
        rows.append(Figure(label=f"{label}: p99", key="", ours=as_spread(case["p99_ms"])))
    return rows


def engine_rows(report: dict[str, Any]) -> list[Figure]:
    """Rate, CPU per token on both sides, TTFT, and the round trip if it was measured; or the duration of a step."""
    streams, step_ms = report["streams"], report["step_ms"]
    if step_ms:
        label = f"engine, {streams} streams: a step of {step_ms:g} ms takes, ms"
        key = f"engine/{streams}/step {step_ms:g} ms/tpot_ms"
        return [Figure(label=label, key=key, ours=as_spread(report["tpot_ms"]), digits=2)]
    rows = []
    for name, unit in UNITS.items():
        row = Figure(
            label=f"engine, {streams} streams: {unit}",
            key=f"engine/{streams}/{name}",
            ours=as_spread(report[name]),
            digits=2,
        )
        if name == "tok_s":
            row.digits = 0
        if streams == 256:
            row.bound = ENGINE.get(name)
            row.times_peer = ENGINE_TIMES_PEER if name == "tok_s" else None
        rows.append(row)
    trips = report["round_trip_ms"]
    if trips is not None:
        p50 = Spread(trips["p50"], trips["p50"], trips["p50"])
        rows.append(
            Figure(
                label="engine, one-token round trip p50, ms",
                key="engine/round_trip_ms",
                ours=p50,
                bound=ROUND_TRIP_MS,
            )
        )
    return rows


def startup_rows(report: dict[str, Any]) -> list[Figure]:
    """First token, import, help."""
    model = model_name(report["model"])
    rows = []
    if report["startup_s"] is not None:
        first = as_spread(report["startup_s"])
        rows.append(
            Figure(
                label=f"process to first token, {model}, s",
                key=f"startup/{model}",
                ours=first,
                digits=2,
                bound=STARTUP_S,
            )
        )
    rows.append(
        Figure(
            label="import tenonry over bare Python, s",
            key="",
            ours=as_spread(report["import_s"]),
            bound=IMPORT_S,
        )
    )
    rows.append(
        Figure(label="tenonry --help, s", key="", ours=as_spread(report["help_s"]), bound=HELP_S)
    )
    return rows


def loading_rows(report: dict[str, Any]) -> list[Figure]:
    """Cost of loading a model, relative to reading its bytes."""
    label = f"loading, {model_name(report['model'])}, over reading its bytes"
    return [
        Figure(
            label=f"{label}: CPU",
            key="",
            ours=as_spread(report["ratio_cpu"]),
            digits=2,
            bound=report["target"],
        ),
        Figure(
            label=f"{label}: clock",
            key="",
            ours=as_spread(report["ratio_wall"]),
            digits=2,
            bound=report["target"],
        ),
    ]


def throughput_rows(report: dict[str, Any]) -> list[Figure]:
    """Output tokens per second of each workload; a target only where the peer has a figure."""
    model = model_name(report["model"])
    return [
        Figure(
            label=f"throughput, {model} {result['workload']}: output tokens/s",
            key=f"throughput/{model}/{result['workload']}",
            ours=as_spread(result["output_tok_s"]),
            digits=1,
            times_peer=THROUGHPUT_TIMES_PEER,
        )
        for result in report["results"]
    ]


def as_spread(data: dict[str, float]) -> Spread:
    """A spread as a report holds it."""
    return msgspec.convert(data, Spread)
