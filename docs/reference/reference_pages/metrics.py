"""The page of metrics."""

from __future__ import annotations

from reference_pages.text import NOTICE


def metrics_page() -> str:
    """Every metric of the prometheus stat logger."""
    from tenonry_stat_logger_prometheus import metric_table

    parts = ["# Metrics\n", NOTICE]
    parts += [
        "Those that vLLM measures, too, have an alias under its prefix, `vllm:`, unless that is switched off.\n"
    ]
    parts += ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    parts += [
        f"| `{name}` | {kind} | {', '.join(labels)} | {text} |"
        for name, kind, labels, text in metric_table()
    ]
    return "\n".join(parts) + "\n"
