"""The connector `chain` under the conformance suite of its kind, around connectors that load in different ways."""

from __future__ import annotations

from tenonry_testkit.kv_connector import KVConnectorContract

MEMORY = "tenonry_testkit.fakes:MemoryConnector"
OTHER = "tenonry_testkit.fakes.connector:MemoryConnector"


class TestChain(KVConnectorContract):
    """One whose loads take steps, which sometimes fail, before one whose loads are there when the step begins."""

    kv_connector = "chain"
    effort = 0.5

    def options(self, tmp_path):
        return {
            "connectors": f"{MEMORY},{OTHER}",
            f"{MEMORY}.store": f"{tmp_path} 1",
            f"{MEMORY}.asynchronous": True,
            f"{MEMORY}.fail_loads": 1,
            f"{OTHER}.store": f"{tmp_path} 2",
        }

    brings_hits = False


class TestChainTheOtherWayRound(TestChain):
    brings_hits = True

    def options(self, tmp_path):
        return {
            "connectors": [OTHER, MEMORY],
            f"{OTHER}.store": f"{tmp_path} 1",
            f"{MEMORY}.store": f"{tmp_path} 2",
            f"{MEMORY}.asynchronous": True,
        }
