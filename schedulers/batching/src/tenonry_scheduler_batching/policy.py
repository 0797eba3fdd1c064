"""What a scheduling policy may decide; the batching scheduler asks. Engine process.

class ShortPromptsFirst(SchedulingPolicy):
    starvation_free = False

    def order(self, request):
        return request.num_prompt_tokens

Given as `--scheduling-policy my_pkg:ShortPromptsFirst`, `./file.py:ShortPromptsFirst`, or by the name of an entry point
in the group `tenonry.scheduling_policies`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ValidationError

from tenonry.errors import ConfigError, PluginError, PluginFault, TenonryError
from tenonry.interfaces.plugin import NoOptions
from tenonry.plugin.discovery import distribution_of_module
from tenonry.request import Request

QUESTIONS = ("order", "admit", "victim")


class AdmissionState(NamedTuple):
    """What is left in the step being built. `now`: the scheduler's clock, seconds, as in `Request.arrival_time`."""

    free_blocks: int
    num_running: int
    tokens_left: int
    now: float


class SchedulingPolicy:
    """Base of policies, for convenience: any object with one of the three methods will do. First come, first served.

    `starvation_free` says that a request waits at most for those ahead of it when it came, plus `max_num_seqs`; an
    order that lets later requests pass for ever must say False. `options` is what the user gave, after validation by
    `Options`.
    """

    starvation_free: ClassVar[bool] = True
    Options: ClassVar[type[BaseModel]] = NoOptions

    def __init__(self, options: BaseModel | None = None) -> None:
        self.options = options or self.Options()

    def order(self, request: Request) -> Any:
        """The request's place in the queue: smallest first, ties by arrival. Asked once, when it enters the queue.

        Ageing is a matter of the key: arrival time minus a weight never lets a request be passed for ever.
        """
        return request.arrival

    def admit(self, request: Request, state: AdmissionState) -> bool:
        """Whether the first of the queue may start in this step; False ends admission for the step."""
        return True

    def victim(self, running: list[Request]) -> Request:
        """Who loses its row when blocks run out. `running`: two or more requests, in the order they started."""
        return running[-1]


class Policy(NamedTuple):
    """A policy as the scheduler uses it: bound methods, None where the default is meant."""

    order: Callable[[Request], Any]
    admit: Callable[[Request, AdmissionState], bool] | None
    victim: Callable[[list[Request]], Request]
    starvation_free: bool


def bind_policy(name: str, target: Any, options: Mapping[str, Any]) -> Policy:
    """Make `target` (a class, an instance or a module) a policy. Raises PluginError or ConfigError that names it."""
    if not any(callable(getattr(target, question, None)) for question in QUESTIONS):
        raise PluginError(
            f"scheduling policy '{name}' has none of the methods {', '.join(QUESTIONS)}"
        )
    home = str(getattr(target, "__module__", ""))
    build = _blaming(name, home, "its constructor", _build)
    policy = build(name, target, options) if isinstance(target, type) else target
    if options and not isinstance(target, type):
        raise ConfigError(f"scheduling policy '{name}' takes no options, but got {sorted(options)}")
    default = SchedulingPolicy()
    admits = getattr(type(policy), "admit", None) is not SchedulingPolicy.admit and hasattr(
        policy, "admit"
    )
    order, admit, victim = (
        _blaming(name, home, question, getattr(policy, question, getattr(default, question)))
        for question in QUESTIONS
    )
    return Policy(
        order,
        admit if admits else None,
        victim,
        bool(getattr(policy, "starvation_free", True)),
    )


def _blaming(name: str, home: str, call: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; what it raises by mistake names the policy, not the scheduler that asked."""

    def ask(*args: Any) -> Any:
        try:
            return function(*args)
        except TenonryError:
            raise
        except Exception as error:
            raise PluginFault(name, *distribution_of_module(home), call, error) from error

    return ask


def _build(name: str, cls: type, options: Mapping[str, Any]) -> object:
    model = getattr(cls, "Options", NoOptions)
    try:
        parsed = model.model_validate(dict(options))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in problem["loc"])
        raise ConfigError(f"scheduling policy '{name}', option {path}: {problem['msg']}") from None
    return cls(parsed) if hasattr(cls, "Options") else cls()
