"""A read-only face for a list, handed to plugins that may look at tokens but not change them. Any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar, overload

T = TypeVar("T")


class ConstantList(Sequence[T]):
    """View of `items`: reads go through (later changes of `items` are seen), every mutation raises TypeError."""

    __slots__ = ("_items",)

    def __init__(self, items: list[T]) -> None:
        self._items = items

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this list is read-only; copy it with list(...) to change it")

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        return self._items.index(value, start, len(self._items) if stop is None else stop)

    def __repr__(self) -> str:
        return f"ConstantList({self._items!r})"
