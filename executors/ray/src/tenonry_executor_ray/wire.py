"""Messages between actors and their owners: bytes of msgpack, text and numbers. Every process of a Ray cluster."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from tenonry import errors
from tenonry.config import EngineConfig
from tenonry.errors import LaunchError, TenonryError
from tenonry.info import PluginRecord
from tenonry.interfaces.executor import ExecutorContext
from tenonry.plugin.plan import PluginPlan

LEAVE_AFTER_S = 0.2
OK = b""  # the first frame of an answer that is no failure


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of an actor: host name and address of its node, Ray's id of the node, pid, and the versions found there.

    `niceness`: set by Ray, 15 unless RAY_worker_niceness is set where the node is started.
    """

    node: str
    address: str = ""
    node_id: str = ""
    pid: int = 0
    niceness: int = 0
    versions: dict[str, str] = {}

    def label(self) -> str:
        return f"{self.node} ({self.address})" if self.address else self.node

    def priority(self) -> str:
        """Hint for a process with reduced priority; else empty."""
        setting = "start Ray's nodes with RAY_worker_niceness=0 if others run there"
        return f", at niceness {self.niceness} ({setting})" if self.niceness > 0 else ""


class RankSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One rank to build, as text and numbers; `worker` and `kv_connector` are entries of the plugin plan."""

    config_text: str
    model_text: str
    max_model_len: int
    worker: PluginRecord
    kv_connector: PluginRecord | None = None
    engine_index: int = 0
    engine_id: str = ""
    rank: int = 0
    local_rank: int = 0
    rendezvous: str = ""


class Failure(msgspec.Struct, frozen=True):
    """An exception as text: the name of its class, its message, and the responsible plugin."""

    kind: str
    text: str
    plugin: str = ""

    @staticmethod
    def of(error: BaseException) -> Failure:
        text = str(error) if isinstance(error, TenonryError) else f"{type(error).__name__}: {error}"
        return Failure(type(error).__name__, text, getattr(error, "plugin", ""))

    def error(self, who: str) -> TenonryError:
        """The exception to raise here, with `who` failed in front."""
        kind = {
            "PluginFault": errors.PluginError,
            "Unsupported": errors.Unsupported,
            "ModelError": errors.ModelError,
            "ConfigError": errors.ConfigError,
        }
        error = kind.get(self.kind, LaunchError)(f"{who}: {self.text}")
        error.plugin = self.plugin  # type: ignore[attr-defined] - as PluginFault has it
        return error


class Answer(msgspec.Struct, frozen=True):
    """Answer of an actor to a call."""

    value: Any = None
    failure: Failure | None = None


def facts_here(plan_text: str) -> NodeFacts:
    """The facts of this process, with the versions of the plan's distributions, of the kernel and of Python."""
    import ray
    from ray.util import get_node_ip_address

    plan = PluginPlan.decode(plan_text) if plan_text else PluginPlan()
    return NodeFacts(
        node=socket.gethostname(),
        address=get_node_ip_address(),
        node_id=ray.get_runtime_context().get_node_id(),
        pid=os.getpid(),
        niceness=os.getpriority(os.PRIO_PROCESS, 0),
        versions=plan.versions_here() | _common_versions(),
    )


def refuse_differences(plan_text: str, actors: Sequence[tuple[str, NodeFacts]]) -> None:
    """Raise LaunchError if an actor's node has other versions than the plan and this process: node, package, both."""
    plan = PluginPlan.decode(plan_text) if plan_text else PluginPlan()
    wanted = plan.versions() | _common_versions()
    for who, facts in actors:
        for package, version in wanted.items():
            theirs = facts.versions.get(package, "missing")
            if theirs != version:
                raise LaunchError(
                    f"node {facts.label()} ({who}) has {package} {theirs}, this one has {version}; install the same "
                    "version on both"
                )


def _common_versions() -> dict[str, str]:
    minor = ".".join(platform.python_version_tuple()[:2])
    return {"Python": minor, "tenonry": importlib.metadata.version("tenonry")}


def leave_soon() -> None:
    """End the process, after the answer to the current call."""
    threading.Timer(LEAVE_AFTER_S, os._exit, (0,)).start()


def driver_rank(config: EngineConfig) -> int:
    """The rank whose results count: the first one of the last pipeline stage."""
    return (config.pipeline_parallel_size - 1) * config.tensor_parallel_size


def rank_spec(
    context: ExecutorContext,
    facts: Sequence[NodeFacts],
    rank: int,
    rendezvous: str,
    *,
    has_own_gpu: bool,
) -> RankSpec:
    """Specification of a rank. A rank with its own GPU sees no other; others are counted on their node."""
    neighbours = sum(other.node_id == facts[rank].node_id for other in facts[:rank])
    return RankSpec(
        config_text=context.config.model_dump_json(),
        model_text=msgspec.json.encode(context.model).decode(),
        max_model_len=context.max_model_len,
        worker=_worker_entry(context),
        kv_connector=context.kv_connector,
        engine_index=context.engine_index,
        engine_id=context.engine_id,
        rank=rank,
        local_rank=0 if has_own_gpu else neighbours,
        rendezvous=rendezvous,
    )


def _worker_entry(context: ExecutorContext) -> PluginRecord:
    """The worker by name: the plan's entry, with the options as they were checked."""
    plan = PluginPlan.decode(context.plan_text) if context.plan_text else PluginPlan()
    target = context.worker_target
    entry = plan.find("worker") or PluginRecord(kind="worker", name=target, target=target)
    return msgspec.structs.replace(entry, options=context.worker_options.model_dump(mode="json"))
