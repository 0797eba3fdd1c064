"""Summary of an engine as lines for people: of `tenonry top`, and of the stat logger `live`. Any process."""

from __future__ import annotations

from typing import Any


def screen(title: str, found: dict[str, Any]) -> str:
    """The summary under a title. Shares, times in seconds and percentiles may be None: there was nothing to measure."""
    tokens = (
        f"{found['prompt_tokens_per_s']:.1f} prompt and {found['output_tokens_per_s']:.1f} output"
    )
    rows = [
        ("model", found["model"]),
        ("requests", f"{found['running']:g} running, {found['waiting']:g} waiting"),
        ("throughput", f"{tokens} tokens/s, {found['requests_per_s']:.2f} requests/s"),
        ("KV cache", f"{_percent(found['kv_cache_usage'])} in use"),
        ("prefix hits", _percent(found["prefix_cache_hits"])),
        ("preemptions", f"{found['preemptions']:g}"),
    ]
    for name, values in found["latency_s"].items():
        shown = ", ".join(f"{key} {_milliseconds(value)}" for key, value in values.items())
        rows.append((name, shown))
    rows += [
        ("plugins" if not number else "", each) for number, each in enumerate(found["plugins"])
    ]
    return f"{title}\n" + "".join(f"{name:<12} {value}\n" for name, value in rows)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f} ms"
