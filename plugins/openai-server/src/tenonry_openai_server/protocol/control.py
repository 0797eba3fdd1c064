"""Bodies and responses of the operator routes for running engines. Front end."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from tenonry_openai_server.protocol.parse import Body

Name = Annotated[str, Field(min_length=1, max_length=1024)]


class ControlBody(Body):
    """Base of the bodies of operators: an unknown field is rejected, because the operation would act differently."""

    is_strict: ClassVar[bool] = True


class EmptyRequest(ControlBody):
    """Body of a route without parameters: {}."""


class SleepRequest(ControlBody):
    """Body of POST /sleep."""

    level: int = Field(1, ge=1, le=2)


class WakeUpRequest(ControlBody):
    """Body of POST /wake_up."""

    tags: list[Literal["weights", "kv_cache"]] | None = Field(None, max_length=2)


class PauseRequest(ControlBody):
    """Body of POST /pause: treatment of running requests. `wait_for_inflight_requests` is `mode` wait."""

    mode: Literal["keep", "wait", "abort"] | None = Field(None, description="keep by default.")
    wait_for_inflight_requests: bool = False
    clear_cache: bool = True

    @property
    def chosen_mode(self) -> str:
        """`mode` with its default."""
        return self.mode or ("wait" if self.wait_for_inflight_requests else "keep")

    @model_validator(mode="after")
    def _check(self) -> PauseRequest:
        if self.wait_for_inflight_requests and self.mode not in (None, "wait"):
            raise ValueError(
                f"wait_for_inflight_requests is mode wait, not {self.mode}; give mode alone"
            )
        return self


class AbortRequest(ControlBody):
    """Body of POST /abort_requests: ids of answers, as in `id`; all requests without."""

    request_ids: list[Name] | None = Field(None, max_length=100_000)


class ResetPrefixCacheRequest(ControlBody):
    """Body of POST /reset_prefix_cache."""

    reset_running_requests: bool = False
    reset_connector: bool = False


class UpdateWeightsRequest(ControlBody):
    """Body of POST /update_weights."""

    source: Annotated[str, Field(min_length=1, max_length=4096)]
    names: list[Name] | None = Field(None, min_length=1, max_length=100_000)
    version: str = Field("", max_length=256, pattern=r"^[\x21-\x7e]*$")


class ScaleRequest(ControlBody):
    """Body of POST /scale."""

    size: int = Field(ge=1, le=1024)
    drain_timeout: float = Field(300.0, ge=0, le=86_400)


class ReplaceRequest(ControlBody):
    """Body of POST /replace: settings of the new engines, by name."""

    changes: dict[str, Any] = Field(default_factory=dict, max_length=64)


class DoneResponse(msgspec.Struct):
    """Response of an operation: True if it was completed."""

    done: bool = True


class ServerInfoResponse(msgspec.Struct):
    """Response of GET /server_info: non-default settings, without secrets and options of plugins, and facts learnt at
    start-up.
    """

    version: str
    config: dict[str, Any]


class PausedResponse(msgspec.Struct):
    """Response of GET /is_paused."""

    is_paused: bool


class SleepingResponse(msgspec.Struct):
    """Response of GET /is_sleeping."""

    is_sleeping: bool
