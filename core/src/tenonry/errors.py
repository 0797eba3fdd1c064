"""Exceptions for users, plugin authors and clients. Used in every process.

One base class, so that `except TenonryError` is enough; messages name the thing, the value, the bound and what to type
instead.
"""

from __future__ import annotations

import enum
import signal
import sys
import traceback


def describe_cause(cause: BaseException) -> str:
    """Return type, text, and the innermost file and line outside kernel and standard library, where there is one."""
    places = [
        f" ({frame.f_code.co_filename}:{line})"
        for frame, line in traceback.walk_tb(cause.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0]
        not in {"tenonry", *sys.stdlib_module_names}
    ]
    return f"{type(cause).__name__}: {cause}{''.join(places[-1:])}"


class ErrorCode(enum.StrEnum):
    """Cause of a failed request, for programs. Plugins may define further codes."""

    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED = "unsupported"
    NO_TOKEN_LEFT = "no_token_left"  # noqa: S105 - no password
    NO_PROMPT_LOGPROBS = "no_prompt_logprobs"
    GENERATION_FAILED = "generation_failed"
    ENGINE_HELD = "engine_held"
    ENGINE_CRASH = "engine_crash"


class TenonryError(Exception):
    """Base of all errors raised on purpose by the kernel and the first-party plugins."""


class ConfigError(TenonryError, ValueError):
    """A setting is wrong: an unknown key, a value out of bounds, two settings that exclude each other."""


class PluginError(TenonryError):
    """Unusable plugin: missing, incompatible, invalid or broken while it was built."""


class PluginNotFound(PluginError, LookupError):
    """No installed plugin of this kind has the name."""


class PluginIncompatible(PluginError):
    """The plugin exists but does not fit this kernel: versions, interface or options disagree."""


class PluginFault(PluginError):
    """A plugin raised while the kernel called it. `__cause__` is the original exception; the message names the
    innermost file and line outside kernel and standard library.

    Attributes name the culprit: `plugin`, `distribution`, `version`, `call`.
    """

    def __init__(
        self, plugin: str, distribution: str, version: str, call: str, cause: BaseException
    ) -> None:
        self.plugin = plugin
        self.distribution = distribution
        self.version = version
        self.call = call
        origin = f"{distribution} {version}" if distribution else "no distribution"
        super().__init__(f"plugin {plugin} ({origin}) failed in {call}: {describe_cause(cause)}")
        self.__cause__ = cause


def is_interrupt(error: BaseException) -> bool:
    """Return True if `error` ends the program or a task instead of being a fault of the running plugin.

    Ctrl-C does where Python raises it, not where a plugin did; so does an exception of a signal handler or asyncio.
    """
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return not isinstance(error, Exception | SystemExit | GeneratorExit)


class ContractViolation(PluginError):
    """A scheduler's step breaks a rule of its contract. Attributes: `plugin`, `step_id`, `rule`."""

    def __init__(self, plugin: str, step_id: int, rule: str, detail: str) -> None:
        self.plugin = plugin
        self.step_id = step_id
        self.rule = rule
        super().__init__(f"scheduler {plugin} broke the rule '{rule}' in step {step_id}: {detail}")


class ModelError(TenonryError):
    """The model cannot be found, read or run; the message names the file or layer and a remedy."""


class RequestError(TenonryError, ValueError):
    """One request is invalid; nothing else is affected. `param` names the offending field, where one is known."""

    def __init__(
        self, message: str, param: str | None = None, code: str = ErrorCode.INVALID_REQUEST
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFullError(TenonryError):
    """The bounded queue is full. `retry_after_s` is a hint for the client."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DrainingError(QueueFullError):
    """Queue closed: this front end finishes its requests and ends."""


class EngineGenerateError(TenonryError):
    """One request failed inside the engine; others continue. `code`: an ErrorCode or a plugin's own code."""

    def __init__(
        self, reason: str, code: str = "", param: str | None = None, *, request_id: str = ""
    ) -> None:
        super().__init__(f"request {request_id} failed: {reason}" if request_id else reason)
        self.reason = reason
        self.code = code or ErrorCode.GENERATION_FAILED
        self.param = param


class EngineDeadError(TenonryError):
    """The engine is dead; this client can serve no further request."""


class LaunchError(TenonryError):
    """A child process could not be started, or died or timed out before it was ready."""


class WireError(TenonryError):
    """A frame from a peer cannot be decoded or does not belong to this protocol version or epoch."""


class Unsupported(TenonryError):
    """The call is known, but the chosen plugin declares no support for it."""
