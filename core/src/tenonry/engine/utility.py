"""The allow-list of engine methods that a front end may call by name. Engine process."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec
from setproctitle import setproctitle

from tenonry.config import EngineConfig
from tenonry.engine.core import EngineCore
from tenonry.engine.ports import ClientPorts
from tenonry.errors import PluginError, Unsupported
from tenonry.interfaces.call_set import CallSet
from tenonry.interfaces.launcher import engine_name
from tenonry.interfaces.plugin import PluginContext
from tenonry.interfaces.worker import bind_arguments
from tenonry.logs import configure_logging
from tenonry.messages import UtilityCall, UtilityResult
from tenonry.plugin.manager import build_plugin
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.serial import to_plain

# Methods of EngineCore.
OF_CORE = ("call_workers", "request_counts", "reset_mm_cache", "reset_prefix_cache")


def name_process(config: EngineConfig, index: int, epoch: int) -> None:
    """Set the process title, read by `tenonry ps`, of an engine started later: with its epoch."""
    setproctitle(f"tenonry: {engine_name(index)} epoch {epoch} {config.process_note}".rstrip())


class EngineUtilities:
    """Every public method is callable from a front end; arguments and results are plain msgpack values.

    Methods of call sets are callable as `NAME.METHOD`.
    """

    def __init__(self, core: EngineCore, ports: ClientPorts) -> None:
        self._core = core
        self._ports = ports
        self.methods = _public("", self) | {name: getattr(core, name) for name in OF_CORE}
        for name, call_set in build_call_sets(core.config, core.plan).items():
            self.methods |= _public(f"{name}.", call_set.engine_half(core))

    def attach_client(self, client: int, input_address: str, output_address: str) -> None:
        """Serve a new front end instead of the previous one of this index, whose requests are aborted."""
        self.detach_client(client)
        self._ports.attach(client, input_address, output_address)

    def detach_client(self, client: int) -> None:
        """Abort the requests of a front end that left and close its sockets."""
        self._core.abort_client(client)
        self._ports.detach(client)

    def take_place(self, index: int, epoch: int) -> None:
        """Take the index of a dead engine from now on."""
        self._core.index = index
        self._ports.take_place(index, epoch)
        configure_logging(engine_name(index))
        name_process(self._core.config, index, epoch)

    def check_health(self) -> bool:
        """Return True, or raise the error of `Executor.check_health`, within the executor's deadline."""
        self._core.executor.check_health()
        return True


def build_call_sets(config: EngineConfig, plan: PluginPlan) -> dict[str, CallSet]:
    """The chosen call sets by name. Raises PluginError for two of one name."""
    made: dict[str, CallSet] = {}
    for record in plan.all("call_set"):
        call_set = build_plugin(record, PluginContext(config))
        name = call_set.name or record.name
        if name in made:
            raise PluginError(f"two call sets are called '{name}'; one is {record.label()}")
        made[name] = call_set
    return made


def _public(prefix: str, owner: object) -> dict[str, Callable[..., Any]]:
    return {
        prefix + name: getattr(owner, name)
        for name, _ in inspect.getmembers(type(owner), inspect.isfunction)
        if name[0] != "_"
    }


def answer(utilities: EngineUtilities, call: UtilityCall) -> UtilityResult:
    """Run one call; any Exception becomes the failure text of its result, and the engine continues.

    Structs that were sent as plain values are converted by the annotations of the method.
    """
    try:
        method = utilities.methods.get(call.method)
        if method is None:
            raise Unsupported(
                f"'{call.method}' is not a method of the engine; it has {sorted(utilities.methods)}"
            )
        bound = bind_arguments(method, call.args, call.kwargs)
        hints = get_type_hints(method)
        for name, value in bound.arguments.items():
            hint = hints.get(name)
            if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
                bound.arguments[name] = msgspec.convert(value, hint)
        result = UtilityResult(call.call_id, to_plain(method(*bound.args, **bound.kwargs)))
        msgspec.msgpack.encode(result)  # an unsendable value fails here, for this caller
        return result
    except Exception as error:  # noqa: BLE001 - the caller gets it as text; SystemExit and KeyboardInterrupt pass
        return UtilityResult(call.call_id, failure=f"{type(error).__name__}: {error}")
