"""The page of interfaces: kinds and points, and the contract of each kind."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

from reference_pages.text import NOTICE, signature
from tenonry.plugin.checks import supported_versions
from tenonry.plugin.kinds import EVERY_INSTALLED, HOOK_MODULES, KINDS
from tenonry_commands.plugins import points

# How many plugins of a kind one engine has, where it is not exactly one.
HOW_MANY = {
    "stat_logger": "any",
    "call_set": "any",
    "kv_connector": "none or one",
    "worker": "one per rank",
}

# Points that owners open: what a name stands for, and what asks for it.
OWNERS = {
    "scheduling_policy": (
        "`tenonry_scheduler_batching.SchedulingPolicy`", "the scheduler `batching`: `--scheduling-policy`",
    ),
    "buffers": ("`tenonry_torch_base.buffers.StepBuffers`", "workers on torch: `--worker-option buffers=`"),
    "attention_backend": (
        "`tenonry_torch_base.attention.base.AttentionBackend`", "the worker `torch`: `--attention-backend`",
    ),
    "model_pass": (
        "`tenonry_worker_torch.passes.model_pass.ModelPass`", "the worker `torch`: `--worker-option model_passes=`",
    ),
    "runner_feature": (
        "`tenonry_worker_torch.runner.feature.RunnerFeature`",
        "the worker `torch`: `--worker-option runner_features=`",
    ),
    "drafter": ("`tenonry_drafters.base.Drafter`", "the worker `torch`: `--drafter`"),
    "logits_processor": (
        "`tenonry_torch_base.sampler.processors.LogitsProcessor`",
        "workers on torch: `--worker-option logits_processors=`",
    ),
    "model": ("a function without arguments, that returns a folder", "`hf-hub`: the model's name"),
    "command": ("`tenonry.interfaces.command.Command`", "the command line: `tenonry NAME`"),
    "plugin_command": (
        "`tenonry.interfaces.command.Command`", "the command `plugins`: `tenonry plugins NAME`",
    ),
    "progress_bar": (
        "a context manager of the number of requests, that yields a function of how many ended",
        "`LLM.generate(prompts, use_tqdm=True)`: `default`",
    ),
    "load_balancer": (
        "`tenonry_scale_out.load_balancer.LoadBalancer`", "the coordination `scale-out`: `--load-balancer`",
    ),
    "request_check": (
        "a function, see `tenonry.interfaces.request_check`", "front ends and engines: every installed one",
    ),
    "step_observer": (
        "`tenonry.interfaces.step_observer.StepObserver`", "engines: every installed one",
    ),
    "output_parser": ("`tenonry_output_parsers.base.OutputParser`", "`tenonry serve`: `--output-parser`"),
    "route": ("a function of a `RouteContext`, that returns an ASGI application", "`tenonry serve`: `--route`"),
}  # fmt: skip


def interfaces_page() -> str:
    """Every kind of plugin: group, contract, methods."""
    parts = ["# Interfaces\n", NOTICE, _kinds_table()]
    for kind in KINDS.values():
        interface: Any = kind.load_base()
        supported = supported_versions(interface)
        module = importlib.import_module(interface.__module__)
        parts += [
            f"## {interface.__name__}\n",
            f"`{interface.__module__}.{interface.__name__}`, group `{kind.group}`, ",
        ]
        parts += [f"interface versions {list(supported)}.\n", inspect.getdoc(module) or "", ""]
        parts += [inspect.getdoc(interface) or "", ""]
        context = getattr(module, f"{interface.__name__}Context", None)
        if context is not None:
            fields = ", ".join(
                f"`{field.name}: {field.type}`" for field in dataclasses.fields(context)
            )
            parts += [
                f"**Context** (`{context.__name__}`: {fields})\n",
                inspect.getdoc(context) or "",
                "",
            ]
        for name, member in vars(interface).items():
            function = member.__func__ if isinstance(member, classmethod) else member
            if inspect.isfunction(function) and not name.startswith("_"):
                note = (
                    "" if getattr(function, "__isabstractmethod__", False) else " *(has a default)*"
                )
                parts += [
                    f"### `{name}{signature(function)}`{note}\n",
                    inspect.getdoc(function) or "",
                    "",
                ]
    return "\n".join(parts).rstrip() + "\n"


def _kinds_table() -> str:
    lines = ["| kind | entry-point group | lives in | how many | tier |", "|---|---|---|---|---|"]
    lines += [
        f"| {kind.kind} | `{kind.group}` | {kind.lives_in} | {HOW_MANY.get(kind.kind, 'one')} | {kind.tier} |"
        for kind in KINDS.values()
    ]
    lines += [
        f"| hook module | `{HOOK_MODULES.group}` | where an engine is started | any | {HOOK_MODULES.tier} |",
        "",
    ]
    lines += [
        "Parts open further points, which are resolved in the process of the part. Any plugin can open one: it",
        "declares a `tenonry.plugin.Point` and names it in the group `tenonry.points`. Those of this repository:\n",
    ]
    lines += [
        "| kind | entry-point group | a name stands for | asked by | tier |",
        "|---|---|---|---|---|",
    ]
    opened = {point.kind: point for point in points()}
    opened |= {point.kind: point for point in EVERY_INSTALLED}
    lines += [
        f"| {kind} | `{opened[kind].group}` | {what} | {who} | {opened[kind].tier} |"
        for kind, (what, who) in OWNERS.items()
    ]
    lines += [
        "\n[Versions](../explanation/versioning.md#tiers) says what a tier promises.",
        "[Records](records.md) has what plugins are given and give back.\n",
    ]
    return "\n".join(lines)
