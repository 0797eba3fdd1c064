"""Request check `answer-limit`: bounds `max_tokens`, if the operator sets a limit. Front end and engine process."""

from __future__ import annotations

from tenonry.config import setting
from tenonry.errors import RequestError
from tenonry.interfaces.plugin import PluginSettings
from tenonry.interfaces.request_check import RequestLimits
from tenonry.messages import EngineCoreRequest


class AnswerLimitSettings(PluginSettings):
    """Settings of this check: every installed check runs, so it does nothing by default."""

    answer_limit: int = setting(0, ge=0)
    """Maximum `max_tokens` of a request. 0 disables the check."""


def check(request: EngineCoreRequest, limits: RequestLimits) -> None:
    """Raise RequestError for a request that may generate more tokens than the limit."""
    most = limits.config.section(AnswerLimitSettings).answer_limit
    params = request.sampling_params
    if not most or params.pooling is not None:
        return
    if params.max_tokens is None:
        raise RequestError(f"max_tokens is missing; set it to at most {most}", "max_tokens")
    if params.max_tokens > most:
        raise RequestError(f"max_tokens is {params.max_tokens}; at most {most}", "max_tokens")


check.Settings = AnswerLimitSettings  # type: ignore[attr-defined]  # functions carry their settings so
