"""The conformance suite of grammar backends, with the form that this one supports."""

from __future__ import annotations

from typing import Any, ClassVar

from tenonry_testkit.grammar import CASES, GrammarContract

from labels.plugin import Labels


class TestLabels(GrammarContract):
    backend = Labels
    cases: ClassVar[Any] = {"choice": CASES["choice"]}
