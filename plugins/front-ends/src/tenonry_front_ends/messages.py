"""What a supervisor and its API servers say to each other: typed messages, each way. Both processes."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenonry.info import EngineInfo, ModelInfo
from tenonry.messages import EngineFacts, EngineZmqAddresses
from tenonry.plugin.plan import PluginPlan
from tenonry.stats import StatRecord


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """Where an API server stands, as text for its process. `index` counts from 1 to `count`; `identity` is of this
    process alone, so that one that follows in its attachment is not taken for it. `curve_keys` is a secret.
    """

    index: int
    count: int
    identity: str
    control_address: str
    input_address: str  # where it binds for its engines
    output_address: str
    plan: PluginPlan
    model: ModelInfo
    curve_keys: str = ""
    traces: bool = False  # whether one of the supervisor's stat loggers does


class ServerHello(msgspec.Struct, array_like=True, tag=True):
    """Server: my sockets are bound here."""

    input_address: str
    output_address: str


class ServerConnected(msgspec.Struct, array_like=True, tag=True):
    """Server: all engines are connected, and requests are taken."""


class ServerFailed(msgspec.Struct, array_like=True, tag=True):
    """Server: I could not start."""

    error: str


class LoggerCall(msgspec.Struct, array_like=True, frozen=True):
    """A call of every stat logger."""

    method: Literal["log", "record_rejection", "record_sleep_state"]
    args: tuple[str | int | bool, ...] = ()


class Report(msgspec.Struct, array_like=True, tag=True):
    """Server: numbers since the last report. `calls` with how often each was made; `dropped` records are missing;
    `flush` is the number of the Flush that it answers, or 0.
    """

    records: list[StatRecord]
    calls: list[tuple[LoggerCall, int]] = []
    dropped: int = 0
    flush: int = 0


class AskMetrics(msgspec.Struct, array_like=True, tag=True):
    """Server: somebody wants to see the metrics."""

    call_id: int


class EnginesReady(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: these engines connect to you now."""

    engines: list[EngineFacts]
    coordinator: EngineZmqAddresses | None
    info: EngineInfo
    pids: dict[str, int]


class EngineDied(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: an engine is gone."""

    index: int
    reason: str


class Flush(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: report what you have, even if it is nothing."""

    number: int


class Heard(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: one of your reports was taken in."""


class Metrics(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: the answer to AskMetrics; no content if no stat logger renders any, or with an error."""

    call_id: int
    content: bytes | None = None
    content_type: str = ""
    error: str = ""


class Stop(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: take no more requests, finish those that run, or abort them, and end."""

    abort: bool


ServerMessage = ServerHello | ServerConnected | ServerFailed | Report | AskMetrics
SupervisorMessage = EnginesReady | EngineDied | Flush | Heard | Metrics | Stop
