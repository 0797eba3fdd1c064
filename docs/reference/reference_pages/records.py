"""The page of records: values that plugins receive and return."""

from __future__ import annotations

import enum
import importlib
import inspect
from typing import Any

import msgspec
import numpy as np

from reference_pages.text import NOTICE, signature

# What a plugin is given or gives back, by who needs it.
RECORDS = {
    "Every plugin": ["interfaces.plugin:Plugin", "interfaces.plugin:PluginOptions", "info:ModelInfo"],
    "Schedulers and policies": [
        "request:Request", "messages:EngineCoreRequest", "tenonry_scheduling:BaseScheduler",
        "tenonry_scheduling:StepBuilder",
        "tenonry_scheduling:BlockManager",
    ],
    "Stat loggers": [
        "stats:StatRecord", "stats:SchedulerStats", "stats:IterationStats", "stats:FinishedRequestStats",
        "info:EngineInfo",
    ],
    "IO processors": [
        "interfaces.io_processor:ProcessedPrompt", "interfaces.io_processor:Detokenizer", "outputs:RequestOutput",
        "outputs:CompletionOutput",
    ],
    "KV connectors": ["interfaces.kv_connector:BlockStore", "interfaces.kv_connector:KVConnectorRole"],
    "Executors and workers": [
        "info:WorkerFacts",
        "kv_cache:KVCacheGroup", "kv_cache:MemoryReport", "kv_cache:KVCacheConfig", "step:SchedulerOutput",
        "step:NewRow", "step:Adapter", "step:ModelRunnerOutput", "step:TokenLogprobs", "step:PromptLogprobs",
        "step:RowFailure", "step:StepFuture", "step:DoneFuture",
        "tenonry_scheduling:BatchState", "tenonry_scheduling:StepInputs",
    ],
    "Launchers": ["interfaces.launcher:EngineSpec"],
    "Call sets": [
        "interfaces.call_set:Engine", "interfaces.call_set:EngineCalls", "interfaces.call_set:FrontEnd",
        "interfaces.call_set:FrontEndHalf",
    ],
    "Request checks": ["interfaces.request_check:RequestLimits"],
    "Step observers": ["interfaces.step_observer:StepObserver"],
    "Commands": ["interfaces.command:Command"],
}  # fmt: skip


def records_page() -> str:
    """Records of plugins: fields with types and defaults, methods with signatures."""
    parts = [
        "# Records\n",
        NOTICE,
        "What plugins are given and give back; [interfaces](interfaces.md) says when.\n",
    ]
    for title, targets in RECORDS.items():
        parts += [f"## {title}\n"]
        for target in targets:
            module, _, name = target.partition(":")
            path = module if module.startswith("tenonry_") else f"tenonry.{module}"
            cls = getattr(importlib.import_module(path), name)
            parts += [f"### {name}\n", f"`{path}.{name}`\n", inspect.getdoc(cls) or "", ""]
            members = [*_fields(cls), *_members(cls)]
            parts += [*(f"- {member}" for member in members), *([""] if members else [])]
    return "\n".join(parts).rstrip() + "\n"


def _fields(cls: type) -> list[str]:
    """Fields of a record, or the plain attributes that a class declares."""
    if issubclass(cls, enum.Enum):
        return [f"`{member.name}`" for member in cls]
    if not issubclass(cls, msgspec.Struct):
        known = vars(cls)
        slots = [name for name in known.get("__slots__", ()) if not name.startswith("_")]
        hints = [
            f"{name}: {hint}"
            for name, hint in known.get("__annotations__", {}).items()
            if name[0] != "_"
        ]
        constants = [
            f"{name} = {value}"
            for name, value in known.items()
            if name.isupper() and isinstance(value, int)
        ]
        return [f"`{text}`" for text in (*slots, *hints, *constants)]
    return [
        f"`{field.name}: {cls.__annotations__.get(field.name, '')}{_of(field)}`"
        for field in msgspec.structs.fields(cls)
    ]


def _of(field: Any) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return "" if value is msgspec.NODEFAULT else f" = {_plain(value)!r}"


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _members(cls: type) -> list[str]:
    """Properties and methods of its own, with the first line of their docstrings."""
    lines = []
    for name, member in vars(cls).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        text = (inspect.getdoc(member) or "").split("\n\n")[0].replace("\n", " ")
        sign = signature(member) if inspect.isfunction(member) else ""
        lines.append(f"`{name}{sign}`" + (f": {text}" if text else ""))
    return lines
