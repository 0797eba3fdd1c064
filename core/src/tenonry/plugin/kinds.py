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
        return interface, range(
            max(1, interface.interface_version - 1), interface.interface_version + 1
        )


def _kind(name: str, class_name: str, lives_in: str, how_many: str) -> Kind:
    return Kind(
        name, f"tenonry.{name}s", f"tenonry.interfaces.{name}:{class_name}", lives_in, how_many
    )


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
OWNED_GROUPS = {"scheduling_policy": "tenonry.scheduling_policies", "buffers": "tenonry.buffers"}
for _name in ("attention_backend", "logits_processor", "grammar", "model", "command", "route"):
    OWNED_GROUPS[_name] = f"tenonry.{_name}s"
OWNED_GROUPS |= {f"{_name}_parser": f"tenonry.{_name}_parsers" for _name in ("tool", "reasoning")}

GROUPS = (
    {name: kind.group for name, kind in KINDS.items()}
    | OWNED_GROUPS
    | {"hook_module": HOOK_MODULES}
)

# Who provides what ("kind:name"), for the remedy in "not found" errors.
_PROVIDERS = {
    "tenonry-bench": "worker:null command:bench",
    "tenonry-commands": "command:generate command:chat command:plugins command:ps command:keys command:completion",
    "tenonry-cuda-buffers": "buffers:cuda",
    "tenonry-demo-model": "model:demo",
    "tenonry-executor-multiproc": "executor:mp",
    "tenonry-executor-ray": "executor:ray launcher:ray",
    "tenonry-executor-uniproc": "executor:uni",
    "tenonry-io-text": "io_processor:text",
    "tenonry-openai-server": "command:serve",
    "tenonry-scheduler-batching": "scheduler:batching scheduling_policy:fcfs scheduling_policy:priority",
    "tenonry-scheduler-static": "scheduler:static",
    "tenonry-stat-logger-console": "stat_logger:console",
    "tenonry-stat-logger-opentelemetry": "stat_logger:opentelemetry",
    "tenonry-stat-logger-prometheus": "stat_logger:prometheus",
    "tenonry-worker-torch": "worker:torch attention_backend:sdpa buffers:host",
}
FIRST_PARTY = {
    tuple(part.split(":")): owner for owner, parts in _PROVIDERS.items() for part in parts.split()
}
