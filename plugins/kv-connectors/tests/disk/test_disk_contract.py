"""The connector `disk` under the conformance suite of its kind."""

from __future__ import annotations

from typing import ClassVar

from tenonry_testkit.kv_connector import KVConnectorContract


class TestDisk(KVConnectorContract):
    kv_connector = "disk"
    effort = 0.5

    def options(self, tmp_path):
        return {"directory": str(tmp_path), "size": "64MiB"}


class TestDiskWithoutPrefixCache(TestDisk):
    config: ClassVar = {"enable_prefix_caching": False}


class TestDiskWithoutRoom(TestDisk):
    """Ten files or so: something is deleted all the time."""

    brings_hits = False

    def options(self, tmp_path):
        return {"directory": str(tmp_path), "size": 1500}
