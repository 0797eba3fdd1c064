"""The messages between a supervisor and its API servers, typed, each way. Both processes."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenonry.info import EngineInfo, ModelInfo
from tenonry.interfaces.launcher import Death
from tenonry.messages import CoordinatorFacts, EngineFacts
from tenonry.plugin.plan import PluginPlan
from tenonry.stats import StatRecord
from tenonry_helper_pool.stats import HelperStats


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """Attachment of an API server to its supervisor, as text for its process. `index` counts from 1 to `count`;
    `identity` belongs to one process and distinguishes it from its successor. `curve_keys` is a secret.
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
    recovers: bool = False  # whether engines that died are started again


class ServerHello(msgspec.Struct, array_like=True, tag=True):
    """Server: the addresses where its sockets are bound."""

    input_address: str
    output_address: str


class ServerConnected(msgspec.Struct, array_like=True, tag=True):
    """Server: all engines are connected, and requests are accepted."""


class ServerFailed(msgspec.Struct, array_like=True, tag=True):
    """Server: the start failed."""

    error: str


class LoggerCall(msgspec.Struct, array_like=True, frozen=True):
    """A call of every stat logger."""

    method: Literal["log", "record_rejection", "record_ignored_field", "record_sleep_state"]
    args: tuple[str | int | bool, ...] = ()


class Report(msgspec.Struct, array_like=True, tag=True):
    """Server: numbers since the last report. `calls` with how often each was made; `dropped` records are missing;
    `flush` is the number of the Flush that it answers, or 0. `helpers`: the latest of each that changed.
    """

    records: list[StatRecord]
    calls: list[tuple[LoggerCall, int]] = []
    dropped: int = 0
    flush: int = 0
    helpers: list[HelperStats] = []


class MetricsRequest(msgspec.Struct, array_like=True, tag=True):
    """Server: a client requests the metrics."""

    call_id: int


class TaskDone(msgspec.Struct, array_like=True, tag=True):
    """Server: the answer to a FrontEndTask. `obstacles`: why an engine started now would not be as it was.
    `addresses`: of "bind", as they are bound: requests and outputs. `error`: why it failed.
    """

    number: int
    obstacles: list[str] = []
    addresses: list[str] = []
    error: str = ""
    num_requests: int = 0


class FrontEndQuestion(msgspec.Struct, array_like=True, tag=True):
    """Server: query to the other front ends, by a step of FrontEndTask."""

    call_id: int
    step: Literal["drained", "forget_media"]
    patience_s: float = 0.0


class ReplaceRequest(msgspec.Struct, array_like=True, tag=True):
    """Server: a client requests engines with these changes, the text of a JSON object."""

    call_id: int
    changes: str


class ScaleRequest(msgspec.Struct, array_like=True, tag=True):
    """Server: a client requests another number of engines. `drain_timeout` in seconds."""

    call_id: int
    size: int
    drain_timeout: float


class EnginesReady(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: these engines connect to the server now."""

    engines: list[EngineFacts]
    coordinator: CoordinatorFacts | None
    info: EngineInfo
    pids: dict[str, int]


class EngineDied(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: an engine has died."""

    index: int
    death: Death


class FrontEndTask(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: a part of bringing engines back, or of replacing them. "check": whether anything stands against it;
    "bind": at these addresses, for these engines; "connect": return when they are connected; "switch": they take their
    places, with this coordinator; "drop": they do not; "try": the suspects. Of scaling: "leave": send these engines no
    new requests, and count theirs; "stay": they get requests again; "remove": they are gone. And for other front ends:
    "drained": return once no request runs, or after `patience_s`, and count those that do; "forget_media": forget
    processed images and other files.
    """

    number: int
    step: Literal[
        "check",
        "bind",
        "connect",
        "switch",
        "drop",
        "try",
        "leave",
        "stay",
        "remove",
        "drained",
        "forget_media",
    ]
    indexes: list[int] = []
    engines: list[EngineFacts] = []
    input_address: str = ""
    output_address: str = ""
    coordinator: CoordinatorFacts | None = None
    patience_s: float = 0.0


class EnginesAdmitted(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: requests may go to these engines, which came back."""

    indexes: list[int]


class EnginesChanged(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: what engines have now; `config` is the text of their configuration."""

    config: str
    info: EngineInfo
    plan: PluginPlan
    pids: dict[str, int]


class ChangeAnswer(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: the answer to ReplaceRequest or ScaleRequest; with an error, and the name of its class, where nothing
    has changed.
    """

    call_id: int
    error: str = ""
    kind: str = ""


class FrontEndAnswer(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: the answer to FrontEndQuestion: the sum of the others; `error` names those that did not answer."""

    call_id: int
    num_requests: int = 0
    error: str = ""


class EngineGivenUp(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: an engine that died is not started again."""

    index: int
    reason: str


class Flush(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: request an immediate report, even an empty one."""

    number: int


class ReportReceived(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: a report was received."""


class Metrics(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: the answer to MetricsRequest; no content if no stat logger renders any, or with an error."""

    call_id: int
    content: bytes | None = None
    content_type: str = ""
    error: str = ""


class Stop(msgspec.Struct, array_like=True, tag=True):
    """Supervisor: accept no more requests, finish or abort those that run, and end."""

    abort: bool


ServerMessage = (
    ServerHello
    | ServerConnected
    | ServerFailed
    | Report
    | MetricsRequest
    | FrontEndQuestion
    | ReplaceRequest
    | ScaleRequest
    | TaskDone
)
SupervisorMessage = (
    EnginesReady
    | EngineDied
    | FrontEndTask
    | FrontEndAnswer
    | EnginesAdmitted
    | EnginesChanged
    | EngineGivenUp
    | ChangeAnswer
    | Flush
    | ReportReceived
    | Metrics
    | Stop
)
