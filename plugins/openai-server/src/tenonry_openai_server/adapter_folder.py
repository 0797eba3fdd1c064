"""A folder of adapters that requests may name: loading on demand and eviction. Front end, event loop."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from tenonry_openai_server.protocol.adapters import MAX_NAME_CHARS

CONFIG = "adapter_config.json"
# In the scope of an HTTP request: its adapter of the folder; None once it has been answered.
USES = "tenonry.adapter"


class AdapterFolder:
    """At most `most` of its adapters are loaded at a time. `leaving`: adapters being unloaded, rejected for new
    requests.
    """

    def __init__(self, folder: str, most: int) -> None:
        self.most = most
        self.leaving: set[str] = set()
        # Name → HTTP requests that use it; least recently used first.
        self._loaded: OrderedDict[str, int] = OrderedDict()
        self._folder = Path(folder).resolve()

    def path_of(self, name: str) -> Path | None:
        """Folder of an adapter, or None: names never refer outside the folder. Reads the disk."""
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
        """Move the least recently used idle adapter to `leaving`; returns its name."""
        name = next((name for name, uses in self._loaded.items() if not uses), None)
        if name is not None:
            del self._loaded[name]
            self.leaving.add(name)
        return name
