"""A folder of adapters that requests may name: which of them are loaded, and which one makes room for another. Front
end, event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from tenonry_openai_server.protocol.adapters import MAX_NAME_CHARS

CONFIG = "adapter_config.json"
# In the scope of an HTTP request: the adapter of the folder that it uses; None once it has been answered.
USES = "tenonry.adapter"


class AdapterFolder:
    """`most` of its adapters are loaded at a time. `leaving`: those that are being unloaded, which no further request
    may use.
    """

    def __init__(self, folder: str, most: int) -> None:
        self.most = most
        self.leaving: set[str] = set()
        # Name → HTTP requests that use it; those used longest ago first.
        self._loaded: OrderedDict[str, int] = OrderedDict()
        self._folder = Path(folder).resolve()

    def path_of(self, name: str) -> Path | None:
        """The folder of an adapter, or None: nothing outside the folder has a name. Looks at the disk."""
        is_plain = name.isprintable() and not set(name) & set("/\\") and name not in {"", ".", ".."}
        if not is_plain or len(name) > MAX_NAME_CHARS:
            return None
        found = self._folder / name
        if found.is_symlink() or not (found / CONFIG).is_file():
            return None
        return found

    @property
    def is_full(self) -> bool:
        """True if an adapter must be unloaded before another is loaded."""
        return len(self._loaded) >= self.most

    def add(self, name: str) -> None:
        """Record a loaded adapter."""
        self._loaded[name] = 0

    def remove(self, name: str) -> None:
        """Drop the record that an adapter was loaded by a request that named it."""
        self._loaded.pop(name, None)

    def hold(self, name: str, scope: MutableMapping[str, Any]) -> None:
        """An HTTP request uses it. Counted once, and not if the request has been answered."""
        if name in self._loaded and USES not in scope:
            self._loaded[name] += 1
            self._loaded.move_to_end(name)
            scope[USES] = name

    def release(self, scope: MutableMapping[str, Any]) -> None:
        """An HTTP request has been answered."""
        name = scope.get(USES)
        scope[USES] = None
        if name in self._loaded:
            self._loaded[name] -= 1

    def begin_unloading(self) -> str | None:
        """Takes the one used longest ago of those that no request uses, which is `leaving` from now on."""
        name = next((name for name, uses in self._loaded.items() if not uses), None)
        if name is not None:
            del self._loaded[name]
            self.leaving.add(name)
        return name
