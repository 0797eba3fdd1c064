"""Point `successors`: rules for the token after another one. Any process; light, because lists of plugins import it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from tenonry.plugin import Point
from tenonry.plugin.manager import resolve_point
from tenonry.step import I32


class Successors(ABC):
    """A rule for the next token."""

    interface_version: ClassVar[int] = 1

    @abstractmethod
    def after(self, token_ids: I32) -> I32:
        """Return the ids after these, in an array of the same shape."""


class PlusOne(Successors):
    """Counts."""

    def after(self, token_ids: I32) -> I32:
        return token_ids + 1


POINT = Point("successors.plugins", Successors, {"plus-one": "successors"}, kind="successors")


def open_rule(choice: str) -> tuple[Successors, str]:
    """Build the chosen rule: a name, module:Class or path.py:Class. Returns it with its name and version.

    Raises PluginError.
    """
    found, record = resolve_point(POINT, choice)
    return found(), f"{record.name} {record.version}".strip()
