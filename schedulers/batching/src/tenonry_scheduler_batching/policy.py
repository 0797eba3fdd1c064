"""Interface of scheduling policies and their binding to the batching scheduler. Engine process.

class ShortPromptsFirst(SchedulingPolicy):
    starvation_free = False

    def order(self, request):
        return request.num_prompt_tokens

Select one by `--scheduling-policy my_pkg:ShortPromptsFirst`, `./file.py:ShortPromptsFirst`, or by the name of an entry
point in the group `tenonry.scheduling_policies`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel

from tenonry.errors import PluginError
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import NoOptions
from tenonry.plugin.checks import check_plugin, load_options
from tenonry.plugin.manager import blamed
from tenonry.request import Request
from tenonry_scheduler_batching.settings import SCHEDULING_POLICIES

QUESTIONS = ("order", "admit", "victim")


class AdmissionState(NamedTuple):
    """Capacity left in the step being built. `now`: the scheduler's clock, seconds, as in `Request.arrival_time`."""

    free_blocks: int
    num_running: int
    tokens_left: int
    now: float


class SchedulingPolicy:
    """Optional base class: any object with one of the three methods is a policy. Defaults to first come, first served.

    `starvation_free`: a request waits at most for its predecessors at arrival, plus `max_num_seqs`; an order with
    unbounded overtaking must set False. `options` is the user's options, validated by `Options`.
    """

    starvation_free: ClassVar[bool] = True
    Options: ClassVar[type[BaseModel]] = NoOptions

    def __init__(self, options: BaseModel | None = None) -> None:
        self.options = options or self.Options()

    def order(self, request: Request) -> Any:
        """Sort key of the request in the queue: smallest first, ties by arrival. Called once, when it enters the queue.

        For ageing, use arrival time minus a weight as the key: no request starves then.
        """
        return request.arrival

    def admit(self, request: Request, state: AdmissionState) -> bool:
        """Return True if the first request of the queue may start in this step; False ends admission for the step."""
        return True

    def victim(self, running: list[Request]) -> Request:
        """Return the request to preempt when blocks run out. `running`: at least two requests, in start order. Break
        ties by arrival, latest first: two equal requests that preempt each other never end.
        """
        return running[-1]


class Policy(NamedTuple):
    """Bound methods of a policy for the scheduler, None for defaults."""

    order: Callable[[Request], Any]
    admit: Callable[[Request, AdmissionState], bool] | None
    victim: Callable[[list[Request]], Request]
    starvation_free: bool


def check_policy(target: Any, record: PluginRecord) -> BaseModel:
    """Return the validated options of a policy, before its construction. Raises PluginError that names it."""
    if not any(callable(getattr(target, question, None)) for question in QUESTIONS):
        raise PluginError(f"{record.label()} has none of the methods {', '.join(QUESTIONS)}")
    if isinstance(target, type) and issubclass(target, SchedulingPolicy):
        point = dataclasses.replace(SCHEDULING_POLICIES, base=SchedulingPolicy)
        check_plugin(target, record, point)
    return load_options(record, target)


def bind_policy(target: Any, record: PluginRecord) -> Policy:
    """Convert `target` (a class, an instance or a module) to a policy. Raises PluginError that names it."""
    options = check_policy(target, record)
    policy = target
    if isinstance(target, type):
        with blamed(record, "its constructor"):
            policy = target(options) if hasattr(target, "Options") else target()
    admits = hasattr(policy, "admit") and (
        getattr(type(policy), "admit", None) is not SchedulingPolicy.admit
    )
    return Policy(
        _bound(policy, "order", record),
        _bound(policy, "admit", record) if admits else None,
        _bound(policy, "victim", record),
        bool(getattr(policy, "starvation_free", True)),
    )


def _bound(policy: Any, question: str, record: PluginRecord) -> Callable[..., Any]:
    """Return the policy's method, or the default; unexpected exceptions are attributed to the policy."""
    method = getattr(policy, question, None) or getattr(SchedulingPolicy(), question)

    def ask(*args: Any) -> Any:
        with blamed(record, question):
            return method(*args)

    return ask
