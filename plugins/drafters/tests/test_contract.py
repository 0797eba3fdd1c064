"""The drafters `ngram` and `model` keep the contract of drafters, whatever their options."""

from __future__ import annotations

from typing import ClassVar

from tenonry_testkit.drafter import DrafterContract


class TestNgram(DrafterContract):
    drafter = "ngram"


class TestShortMatches(DrafterContract):
    drafter = "ngram"
    options: ClassVar[dict[str, int]] = {"min_match": 1, "max_match": 1, "reach": 20}


class TestModel(DrafterContract):
    drafter = "model"
    options: ClassVar[dict[str, object]] = {"model": "fake"}


class TestModelThatIsAlwaysSure(DrafterContract):
    drafter = "model"
    options: ClassVar[dict[str, object]] = {"model": "fake", "min_probability": 0, "num_drafts": 3}
