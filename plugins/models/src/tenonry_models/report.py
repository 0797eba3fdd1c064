"""A report on a model as text and as JSON. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from tenonry.kv_cache import KVCacheGroup
from tenonry_models.check import Report

UNITS = ("bytes", "kB", "MB", "GB", "TB")
STEP = 1000
LABEL_WIDTH = 12
NOTES = "notes"  # the feature with separate lines


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
    """Bytes of state per running sequence, whatever its length."""
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
        ("KV cache" if place == 0 else "", text)
        for place, text in enumerate(_group_texts(facts.groups))
    ]
    lines.append(("context", _context(report)))
    features = {name: value for name, value in facts.features.items() if name != NOTES}
    if features:
        lines.append(("features", "; ".join(_feature(*pair) for pair in features.items())))
    lines += [("note", note) for note in facts.features.get(NOTES, ())]
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


def _group_texts(groups: tuple[KVCacheGroup, ...]) -> list[str]:
    """One for each kind of group, since a kind of layers may be cut into several."""
    alike: dict[tuple[str, int], list[KVCacheGroup]] = {}
    for group in groups:
        alike.setdefault((group.kind, group.window), []).append(group)
    return [_kind_text(*kind, tuple(found)) for kind, found in alike.items()]


def _kind_text(kind: str, window: int, groups: tuple[KVCacheGroup, ...]) -> str:
    name = f"{kind}, window {window}" if window else kind
    layers = sum(len(group.layers) for group in groups)
    parts = [f"{name}: {layers} layers"]
    if len(groups) > 1:
        parts[0] += f" in {len(groups)} groups"
    per_token = bytes_per_token(groups)
    if per_token:
        until = f" within {window:,}" if window else ""
        parts.append(f"{per_token:,} bytes per token{until}")
    if state := state_bytes(groups):
        parts.append(f"{size(state)} per running sequence")
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
