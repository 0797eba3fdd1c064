"""Undo stack of changes to a loaded model. Worker process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Changes:
    """Replaces attributes and restores them in reverse order. Replaced values stay alive until `forget`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def __len__(self) -> int:
        return len(self._undo)

    def set(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute of a module or any other object."""
        kept = getattr(owner, "__dict__", None)
        is_inherited = kept is not None and name not in kept and hasattr(type(owner), name)
        undo = partial(delattr, owner, name)
        if not is_inherited:
            undo = partial(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)
        self._undo.append(undo)

    def on_undo(self, action: Callable[[], object]) -> None:
        """Call `action` when the changes so far are undone."""
        self._undo.append(action)

    def undo(self, to: int = 0) -> None:
        """Undo the changes after the first `to`, the last one first. All are undone, also if one raises."""
        failure: Exception | None = None
        while len(self._undo) > to:
            try:
                self._undo.pop()()
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
        if failure is not None:
            raise failure

    def forget(self) -> None:
        """Keep all changes, and free the replaced values."""
        self._undo.clear()
