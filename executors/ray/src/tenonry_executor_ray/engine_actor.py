"""The actor that holds one engine: it starts the engine as a child process and supervises it. A node of Ray.

The engine runs as it does under the launcher `process`, with its own main thread and signal handlers, and ends with the
actor, whose lifeline it holds. Not decorated: Ray would then send the class itself instead of its name.
"""

from __future__ import annotations

import json
import os

import msgspec

from tenonry.launch.process import ENGINE_ROLE
from tenonry.launch.supervise import Child, Supervisor
from tenonry.logs import configure_logging
from tenonry_executor_ray.wire import facts_here, leave_soon

DEVICES = "CUDA_VISIBLE_DEVICES"


class EngineActor:
    """Actor of one engine. Methods accept and return text, bytes and numbers; `wait` runs as long as the engine."""

    def __init__(self, name: str, role: str = ENGINE_ROLE) -> None:
        self._name = name
        self._role = role
        self._supervisor = Supervisor()
        self._child: Child | None = None
        configure_logging(f"{name} actor")

    def __repr__(self) -> str:
        """Prefix that Ray adds to each output line."""
        return self._name

    def describe(self, plan_text: str) -> bytes:
        """NodeFacts of this node."""
        return msgspec.msgpack.encode(facts_here(plan_text))

    def start(self, spec_text: str, environment_text: str, watch_text: str = "{}") -> int:
        """Start the engine; returns its process id. `watch_text`: options of `Supervisor.start`."""
        if os.environ.get(DEVICES) == "":
            del os.environ[
                DEVICES
            ]  # Ray hides all GPUs from an actor that requested none; the launcher sets the right ones
        environment: dict[str, str] = json.loads(environment_text)
        child = self._supervisor.start(
            self._name,
            self._role,
            {"spec": spec_text},
            environment=environment,
            **json.loads(watch_text),
        )
        self._child = child
        return child.pid

    def wait(self) -> int:
        """The exit code of the engine, once it has ended."""
        if self._child is None:
            raise RuntimeError(f"{self._name} was not started")
        return self._child.process.wait()

    def stop(self, timeout: float) -> None:
        """Terminate the engine; kill its process tree after `timeout` seconds."""
        self._supervisor.stop(timeout)

    def leave(self) -> None:
        """End this process, when the head that could do it is gone; the engine goes with it."""
        leave_soon()


def gpu_ids() -> list[str]:
    """GPUs that Ray assigned to this task."""
    import ray

    return [str(gpu) for gpu in ray.get_runtime_context().get_accelerator_ids().get("GPU", [])]
