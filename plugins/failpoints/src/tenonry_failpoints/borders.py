"""The borders at which faults can happen: one method each, of the kernel or of a kind of plugin. Any process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Border(NamedTuple):
    """`owner` ("module:Class") has the method; with `of_plugins` it is an interface, and its plugins have it."""

    process: str
    verb: str
    owner: str
    method: str
    what: str
    of_plugins: bool = False

    @property
    def before(self) -> str:
        return f"{self.process}.before_{self.verb}"

    @property
    def after(self) -> str:
        """Not reached where the method raises."""
        return f"{self.process}.after_{self.verb}"


CLIENT = "tenonry.client.core_client:CoreClient"
FLEET = "tenonry.launch.fleet:EngineFleet"
HANDSHAKE = "tenonry.engine.proc:EngineHandshake"
LOOP = "tenonry.engine.loop:EngineLoop"
PORTS = "tenonry.engine.ports:ClientPorts"
COORDINATOR = "tenonry_scale_out.coordinator:Coordinator"
SCHEDULER = "tenonry.interfaces.scheduler:Scheduler"
EXECUTOR = "tenonry.interfaces.executor:Executor"
WORKER = "tenonry.interfaces.worker:Worker"
CONNECTOR = "tenonry.interfaces.kv_connector:KVConnector"
BORDERS = (
    Border("fleet", "start", FLEET, "_start", "engines are launched; the second time is the first restart"),
    Border("client", "send", CLIENT, "_send", "a request, an abort or a call goes to an engine"),
    Border("client", "receive", CLIENT, "_decode", "a message of an engine is read"),
    Border("coordinator", "receive", COORDINATOR, "_receive", "a report of an engine is read"),
    Border("engine", "hello", HANDSHAKE, "hello", "an engine's process says that it is there"),
    Border("engine", "start", LOOP, "__init__", "executor, ranks, KV cache and scheduler are built"),
    Border("engine", "ready", HANDSHAKE, "ready", "an engine says that it can be used"),
    Border("engine", "receive", LOOP, "_receive", "a message of a front end is read"),
    Border("engine", "schedule", SCHEDULER, "schedule", "the scheduler makes a step", of_plugins=True),
    Border("engine", "execute", EXECUTOR, "execute_model", "a step goes to the ranks", of_plugins=True),
    Border("engine", "update", SCHEDULER, "update_from_output", "the result of a step is taken in", of_plugins=True),
    Border("engine", "send", PORTS, "send", "outputs go to a front end"),
    Border("worker", "load", WORKER, "load", "a rank loads the model", of_plugins=True),
    Border("worker", "execute", WORKER, "execute_model", "a rank computes a step", of_plugins=True),
    Border("kv", "match", CONNECTOR, "match", "a KV connector looks for a prompt's blocks", of_plugins=True),
    Border("kv", "load", CONNECTOR, "load", "a rank brings blocks in, before a step", of_plugins=True),
    Border("kv", "save", CONNECTOR, "save", "a rank takes blocks out, after a step", of_plugins=True),
    Border("kv", "poll", CONNECTOR, "poll", "a rank says which transfers ended", of_plugins=True),
)  # fmt: skip


def names() -> Iterator[str]:
    """All failpoints."""
    for border in BORDERS:
        yield border.before
        yield border.after
