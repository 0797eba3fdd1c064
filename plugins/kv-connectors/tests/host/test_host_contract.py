"""The connector `host` under the conformance suite of its kind."""

from __future__ import annotations

from typing import ClassVar

from tenonry_testkit.kv_connector import KVConnectorContract


class TestHost(KVConnectorContract):
    kv_connector = "host"
    brings_hits = False  # what one engine keeps is lost with it
    effort = 0.5

    def options(self, tmp_path):
        return {"size": "1MiB"}


class TestHostWithoutPrefixCache(TestHost):
    """Whatever is known comes from the connector."""

    config: ClassVar = {"enable_prefix_caching": False}


class TestHostWithoutRoom(TestHostWithoutPrefixCache):
    """Six blocks of 32 bytes: something is dropped all the time."""

    def options(self, tmp_path):
        return {"size": 6 * 32}
