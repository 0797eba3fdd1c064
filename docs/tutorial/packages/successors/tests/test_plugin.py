"""The point, filled by this package and by others, and the suite of workers for its owner."""

from __future__ import annotations

import numpy as np
import pytest
from tenonry.errors import PluginIncompatible, PluginNotFound
from tenonry.plugin import Point
from tenonry.plugin.manager import resolve_point
from tenonry.step import I32
from tenonry_testkit.worker import WorkerContract

from successors.plugin import POINT, Successors, open_rule

TOKENS = np.array([4, 7], np.int32)


class Twice(Successors):
    """A rule of another package."""

    def after(self, token_ids: I32) -> I32:
        return 2 * token_ids


class Unfinished(Successors):
    """A rule without its method."""


class TestSuccessorsWorker(WorkerContract):
    worker = "successors.worker:SuccessorsWorker"
    supports_min_tokens = False
    supports_logprobs = False
    supports_allowed_tokens = False


def test_it_is_a_point() -> None:
    assert resolve_point(Point("tenonry.points"), "successors.plugin:POINT")[0] is POINT


def test_rules_are_found() -> None:
    assert open_rule("successors.plugin:PlusOne")[0].after(TOKENS).tolist() == [5, 8]
    assert open_rule(f"{__name__}:Twice")[0].after(TOKENS).tolist() == [8, 14]


def test_a_missing_method_is_named() -> None:
    with pytest.raises(PluginIncompatible, match="after"):
        open_rule(f"{__name__}:Unfinished")


def test_unknown_names_are_rejected() -> None:
    with pytest.raises(PluginNotFound, match="minus-one"):
        open_rule("minus-one")
