"""The page of settings, passes and features that exclude each other, and of parts on CUDA."""

from __future__ import annotations

from reference_pages.text import NOTICE

MEASURED = "yes"

TORCH = "torch's operations around the attention kernels"

# What is used → tokens equal the CPU's in float32, kernels and graphs of decoding steps.
ON_CUDA = {
    "greedy, temperature, top-p, top-k, min-p, seeds, penalties, log-probabilities": (MEASURED, "kernels, graphs"),
    "prefix cache, chunked prompts, two steps in flight, sleep": (MEASURED, "kernels, graphs"),
    "JSON schemas": (MEASURED, "kernels, graphs"),
    "KV connectors `host` and `disk`": (MEASURED, "kernels, graphs"),
    "`max_loras`": (MEASURED, "kernels"),
    "`max_images`": ("not measured", "kernels"),
    "layers with state (Mamba, Kimi Linear, Bamba)": (MEASURED, TORCH),
    "tables that follow the sequence length": ("not measured", "kernels"),
    "other structures than Llama's (MLA, sinks, experts)": (MEASURED, TORCH),
    "`kv_cache_dtype` in 8 bits": ("not measured", "kernels, graphs"),
    "`quantization`, quantised checkpoints": ("not measured", "kernels, graphs"),
    "`tensor_parallel_size`, `pipeline_parallel_size`": ("not measured", "kernels"),
    "`enable_expert_parallel`": ("not measured", TORCH),
    "`enforce_eager`": (MEASURED, "attention kernels, the model's own code"),
}  # fmt: skip


def compatibility_page() -> str:
    """Return the page of settings, passes and features of the worker `torch` that exclude each other."""
    from tenonry_torch_base.conflicts import CONDITIONS
    from tenonry_worker_torch.compatibility import OWN

    parts = ["# Compatibility\n", NOTICE]
    parts += [
        "Settings of the worker `torch` that exclude each other. It rejects them by name before weights are read,",
        "and no other combination of them. What a model supports is in [models](models.md).\n",
    ]
    names = [part.setting for part in OWN]
    pairs = {frozenset((part.setting, name)) for part in OWN for name in part.given}
    parts += [f"| | {' | '.join(f'`{name}`' for name in names)} |", "|---" * (len(names) + 1) + "|"]
    for row in names:
        cells = [
            "" if row == name else "no" if frozenset((row, name)) in pairs else "yes"
            for name in names
        ]
        parts.append(f"| `{row}` | {' | '.join(cells)} |")
    for part in OWN:
        parts += [f"\n## `{part.setting}`\n", f"In effect: {CONDITIONS[part.setting].when}.\n"]
        if not part.given:
            parts.append("No setting excludes it by itself.")
            continue
        parts += ["| does not go with | when | why, and what to use |", "|---|---|---|"]
        parts += [
            f"| `{name}` | {CONDITIONS[name].when} | {reason} |"
            for name, reason in part.given.items()
        ]
    return "\n".join([*parts, *_cuda_table()]) + "\n"


def _cuda_table() -> list[str]:
    """Parts that compute on CUDA, by feature."""
    return [
        "\n## On CUDA\n",
        "Tokens were compared with the CPU's in float32 on an H200 on 28 November 2026, before there were kernels and",
        "graphs of decoding steps; `tenonry bench gpu` compares again. One log line has the reason where a model goes",
        "without kernels or graphs.\n",
        "| what is used | tokens as on the CPU | decoding steps use |",
        "|---|---|---|",
        *(f"| {name} | {same} | {used} |" for name, (same, used) in ON_CUDA.items()),
    ]
