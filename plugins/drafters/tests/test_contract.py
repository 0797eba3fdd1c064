"""The drafter `ngram` keeps the contract of drafters, whatever its options."""

from __future__ import annotations

from typing import ClassVar

from tenonry_testkit.drafter import DrafterContract


class TestNgram(DrafterContract):
    drafter = "ngram"


class TestShortMatches(DrafterContract):
    drafter = "ngram"
    options: ClassVar[dict[str, int]] = {"min_match": 1, "max_match": 1, "reach": 20}
