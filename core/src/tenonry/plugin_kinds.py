"""The kinds of plugin that the kernel chooses: group, interface and hook of each. Any process; imports no interface."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tenonry.interfaces.plugin import Plugin


class Kind(NamedTuple):
    """One extension point. `interface` is "module:Class"; `lives_in` says which processes build it."""

    name: str
    group: str
    interface: str
    lives_in: str
    how_many: str

    @property
    def hook(self) -> str:
        return f"tenonry_get_{self.name}"

    def load_interface(self) -> tuple[type[Plugin[Any]], range]:
        """The abstract class, and the interface versions this kernel can drive: its own and the one before."""
        module_name, _, class_name = self.interface.partition(":")
        interface: type[Plugin[Any]] = getattr(importlib.import_module(module_name), class_name)
        return interface, range(max(1, interface.interface_version - 1), interface.interface_version + 1)


def _kind(name: str, class_name: str, lives_in: str, how_many: str) -> Kind:
    return Kind(name, f"tenonry.{name}s", f"tenonry.interfaces.{name}:{class_name}", lives_in, how_many)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        _kind("executor", "Executor", "engine", "one"),
        _kind("scheduler", "Scheduler", "engine", "one"),
        _kind("stat_logger", "StatLogger", "front end", "any"),
        _kind("kv_connector", "KVConnector", "engine and worker", "none or one"),
        _kind("io_processor", "IOProcessor", "front end", "one"),
        _kind("worker", "Worker", "worker", "one per rank"),
        _kind("launcher", "Launcher", "front end", "one"),
    )
}

HOOK_MODULES = "tenonry.plugins"

# Points that owners of a part open through the same resolver; listed by `tenonry plugins list`.
OWNED_GROUPS: dict[str, str] = {
    "scheduling_policy": "tenonry.scheduling_policies",
    "attention_backend": "tenonry.attention_backends",
    "buffers": "tenonry.buffers",
    "logits_processor": "tenonry.logits_processors",
    "grammar": "tenonry.grammars",
    "model": "tenonry.models",
    "command": "tenonry.commands",
    "route": "tenonry.routes",
    "tool_parser": "tenonry.tool_parsers",
    "reasoning_parser": "tenonry.reasoning_parsers",
}

GROUPS = {name: kind.group for name, kind in KINDS.items()} | OWNED_GROUPS | {"hook_module": HOOK_MODULES}

# Who provides what, for the remedy in "not found" errors.
FIRST_PARTY: dict[tuple[str, str], str] = {
    ("executor", "uni"): "tenonry-executor-uniproc",
    ("executor", "mp"): "tenonry-executor-multiproc",
    ("executor", "ray"): "tenonry-executor-ray",
    ("scheduler", "batching"): "tenonry-scheduler-batching",
    ("scheduler", "static"): "tenonry-scheduler-static",
    ("scheduling_policy", "fcfs"): "tenonry-scheduler-batching",
    ("scheduling_policy", "priority"): "tenonry-scheduler-batching",
    ("stat_logger", "console"): "tenonry-stat-logger-console",
    ("stat_logger", "prometheus"): "tenonry-stat-logger-prometheus",
    ("io_processor", "text"): "tenonry-io-text",
    ("worker", "torch"): "tenonry-worker-torch",
    ("worker", "null"): "tenonry-bench",
    ("launcher", "ray"): "tenonry-executor-ray",
    ("attention_backend", "sdpa"): "tenonry-worker-torch",
    ("buffers", "host"): "tenonry-worker-torch",
    ("buffers", "cuda"): "tenonry-cuda-buffers",
    ("model", "demo"): "tenonry-demo-model",
    ("command", "serve"): "tenonry-openai-server",
    ("command", "bench"): "tenonry-bench",
    ("command", "generate"): "tenonry-commands",
    ("command", "chat"): "tenonry-commands",
    ("command", "plugins"): "tenonry-commands",
    ("command", "ps"): "tenonry-commands",
    ("command", "keys"): "tenonry-commands",
    ("command", "completion"): "tenonry-commands",
}
