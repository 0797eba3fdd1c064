"""The conformance suite of drafters."""

from __future__ import annotations

from typing import Any, ClassVar

from tenonry_testkit.drafter import DrafterContract


class TestPairCounts(DrafterContract):
    drafter = "pair_counts.plugin:PairCounts"
    options: ClassVar[dict[str, Any]] = {"least": 1}
