"""The conformance suite of KV connectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tenonry_testkit.kv_connector import KVConnectorContract


class TestFolderCache(KVConnectorContract):
    kv_connector = "folder_cache.plugin:FolderCache"

    def options(self, tmp_path: Path) -> dict[str, Any]:
        return {"folder": str(tmp_path)}
