"""A read-only view of a list, for plugins that may read tokens but not change them. Any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class ConstantList(Sequence[T]):
    """View of `items`: reads reflect later changes of `items`, every mutation raises TypeError."""

    __slots__ = ("_items",)

    def __init__(self, items: list[T]) -> None:
        self._items = items

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this list is read-only; copy it with list(...) to change it")

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def index(self, *args: Any) -> int:
        return self._items.index(*args)

    def __repr__(self) -> str:
        return f"ConstantList({self._items!r})"
