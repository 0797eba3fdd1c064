"""The distributions of the tree, chosen by folder or name, and what they need."""

from __future__ import annotations

import pytest
from house import NOT_STANDARD, distributions

from dev import tree


def test_distributions_are_those_of_the_tree():
    assert tree.distributions() == {dist.name: dist.folder for dist in distributions()}


def test_closure_holds_declared_siblings_and_theirs():
    assert set(tree.closure({"tenonry-scheduler-batching": {"test"}})) >= {
        "tenonry",
        "tenonry-kvcache",
        "tenonry-scheduler-batching",
    }
    assert "tenonry-worker-torch" not in tree.closure({"tenonry-scheduler-batching": {"test"}})


def test_closure_follows_extras():
    assert tree.closure({"tenonry": set()}) == {"tenonry": set()}
    names = {dist.name for dist in distributions()} - NOT_STANDARD
    assert set(tree.closure({"tenonry": {"standard"}})) == names


@pytest.mark.parametrize(
    "word", ["schedulers/static", "./schedulers/static/", "tenonry-scheduler-static"]
)
def test_distribution_is_chosen_by_folder_or_name(word: str):
    assert tree.choose([word]) == ["tenonry-scheduler-static"]


def test_unknown_distribution_is_refused_with_the_known_ones():
    with pytest.raises(
        SystemExit, match=r"(?s)no distribution 'schedulers/fast'.*schedulers/static"
    ):
        tree.choose(["schedulers/fast"])
