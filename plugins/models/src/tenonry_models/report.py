"""A report on a model as text and as JSON. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from tenonry.kv_cache import KVCacheGroup
from tenonry_models.check import Report

UNITS = ("bytes", "kB", "MB", "GB", "TB")
STEP = 1000
LABEL_WIDTH = 12


def as_text(report: Report) -> str:
    """One fact per line, its name first."""
    return "".join(f"{name:<{LABEL_WIDTH}}{text}\n" for name, text in _lines(report))


def as_json(report: Report) -> str:
    """The same facts; names as in `Report` and `WorkerFacts`, and sums over the groups."""
    data: dict[str, Any] = msgspec.to_builtins(report)
    facts = data.pop("facts")
    data |= facts | {
        "groups": [_group(group) for group in report.facts.groups],
        "kv_bytes_per_token": bytes_per_token(report.facts.groups),
        "state_bytes_per_sequence": state_bytes(report.facts.groups),
    }
    return msgspec.json.format(msgspec.json.encode(data), indent=1).decode() + "\n"


def bytes_per_token(groups: tuple[KVCacheGroup, ...]) -> int:
    """K and V of one token over all layers."""
    return sum(group.bytes_per_token for group in groups)


def state_bytes(groups: tuple[KVCacheGroup, ...]) -> int:
    """What one running sequence takes, however long it is."""
    return sum(group.state_bytes for group in groups)


def _group(group: KVCacheGroup) -> dict[str, Any]:
    """A group with the number of its layers instead of their names."""
    return {
        "kind": group.kind,
        "layers": len(group.layers),
        "bytes_per_token": group.bytes_per_token,
        "state_bytes": group.state_bytes,
        "window": group.window,
    }


def _lines(report: Report) -> list[tuple[str, str]]:
    facts = report.facts
    kind = f" ({facts.model_type})" if facts.model_type else ""
    lines = [("model", f"{facts.architecture}{kind}"), ("worker", facts.worker)]
    lines += [(f"not {name}", reason) for name, reason in facts.refused.items()]
    if facts.num_parameters:
        lines.append(("weights", _weights(report)))
    lines += [
        ("KV cache" if place == 0 else "", _group_text(group))
        for place, group in enumerate(facts.groups)
    ]
    lines.append(("context", _context(report)))
    if facts.features:
        lines.append(("features", "; ".join(_feature(*pair) for pair in facts.features.items())))
    if report.servable:
        lines.append(("servable", "yes"))
        return lines
    lines.append(("servable", f"no: {report.reason}"))
    if report.served_by:
        names = " or ".join(f"--worker {name}" for name in report.served_by)
        lines.append(("instead", names))
    return lines


def _weights(report: Report) -> str:
    facts = report.facts
    text = f"{_count(facts.num_parameters)} parameters, {size(facts.weight_bytes)} in memory"
    if report.stored_here:
        return f"{text}, {size(facts.stored_bytes)} in files"
    return f"{text}; none in the folder"


def _group_text(group: KVCacheGroup) -> str:
    name = f"{group.kind}, window {group.window}" if group.window else group.kind
    parts = [f"{name}: {len(group.layers)} layers"]
    if group.bytes_per_token:
        parts.append(f"{group.bytes_per_token:,} bytes per token")
    if group.state_bytes:
        parts.append(f"{size(group.state_bytes)} per running sequence")
    return ", ".join(parts)


def _context(report: Report) -> str:
    longest = f"{report.max_model_len:,} tokens"
    if report.max_context is None:
        return longest
    if not report.kv_cache_bytes:
        return f"{longest}; {report.max_context:,} fit into {size(report.free_bytes)}"
    pool = size(report.kv_cache_bytes)
    return f"{longest}; {report.max_context:,} fit into the KV cache, {pool} of {size(report.free_bytes)} that are free"


def _feature(name: str, value: Any) -> str:
    plain = name.replace("_", " ")
    if isinstance(value, bool):
        return plain if value else f"no {plain}"
    if isinstance(value, list):
        return f"{plain} {', '.join(map(str, value)) or 'none'}"
    return f"{plain} {value}"


def _count(number: int) -> str:
    for limit, letter in ((10**9, "B"), (10**6, "M")):
        if number >= limit:
            return f"{number / limit:.4g} {letter}"
    return f"{number:,}"


def size(number: int) -> str:
    """Bytes with three digits and a unit; powers of 1000."""
    value = float(number)
    for unit in UNITS[:-1]:
        if abs(value) < STEP:
            return f"{value:.3g} {unit}"
        value /= STEP
    return f"{value:.3g} {UNITS[-1]}"
