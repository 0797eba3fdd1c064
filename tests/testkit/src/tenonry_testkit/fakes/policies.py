"""Scheduling policies for the suite of a scheduler that has policies: minimal ones, and one that fails. Any process.

A policy is any object with one of the methods `order`, `admit` and `victim`; those that it lacks have defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from tenonry.errors import PluginError, RequestError
from tenonry.interfaces.plugin import PluginOptions
from tenonry.request import Request

ERRORS: dict[str, type[Exception]] = {
    "KeyError": KeyError, "PluginError": PluginError, "RequestError": RequestError,
}  # fmt: skip


class OrderAlone:
    """By arrival, the latest first."""

    starvation_free: ClassVar[bool] = False

    def order(self, request: Request) -> int:
        return -request.arrival


class VictimAlone:
    """Preempts the request that started first."""

    def victim(self, running: Sequence[Request]) -> Request:
        return running[0]


class NoPolicy:
    """None of the methods."""


def _admit(request: Request, state: Any) -> bool:
    return bool(state.num_running < 2)


admit_alone = SimpleNamespace(admit=_admit)  # an object instead of a class


class FailingPolicy:
    """Raises the `error` in one `method`."""

    class Options(PluginOptions):
        """`method` that fails, and the `error` that it raises."""

        method: Literal["order", "admit", "victim"] = "order"
        error: Literal["KeyError", "PluginError", "RequestError"] = "KeyError"

    def __init__(self, options: Options) -> None:
        self._options = options

    def order(self, request: Request) -> int:
        self._fail("order")
        return request.arrival

    def admit(self, request: Request, state: Any) -> bool:
        self._fail("admit")
        return True

    def victim(self, running: Sequence[Request]) -> Request:
        self._fail("victim")
        return running[-1]

    def _fail(self, method: str) -> None:
        if method == self._options.method:
            raise ERRORS[self._options.error](f"{method} failed on purpose")
