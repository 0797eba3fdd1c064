"""GPUs of an engine: a share of those visible to this process, in order (DP-2)."""

from __future__ import annotations

import pytest

from tenonry import gpus
from tenonry.errors import LaunchError
from tenonry.gpus import VARIABLE
from tenonry.launch.devices import device_environment, num_places
from tenonry_testkit.kernel.served import served_config


@pytest.fixture
def visible(monkeypatch: pytest.MonkeyPatch):
    def see(value: str | None, *, files: list[str] | None = None) -> None:
        if value is None:
            monkeypatch.delenv(VARIABLE, raising=False)
        else:
            monkeypatch.setenv(VARIABLE, value)

        class Folder:
            def __init__(self, _: str) -> None: ...

            def glob(self, _: str) -> list[object]:
                return [type("File", (), {"name": name}) for name in files or []]

        monkeypatch.setattr(gpus, "Path", Folder)

    return see


def share(rank: int, **values: object) -> dict[str, str]:
    config = served_config(
        **{"device": "cuda", "data_parallel_size": 2, "executor": "mp", **values}
    )
    return device_environment(config, rank)


def test_each_engine_gets_the_next_ones(visible):
    visible("4,5,6,7")
    assert share(0, tensor_parallel_size=2) == {VARIABLE: "4,5"}
    assert share(1, tensor_parallel_size=2) == {VARIABLE: "6,7"}
    assert share(1) == {VARIABLE: "5"}


def test_an_engine_that_joins_a_single_one_gets_others(visible):
    visible("4,5")
    assert share(1, data_parallel_size=1) == {VARIABLE: "5"}


def test_names_are_kept_as_they_are(visible):
    visible("GPU-aa, GPU-bb")
    assert share(1) == {VARIABLE: "GPU-bb"}


def test_without_the_variable_the_devices_of_the_node_count(visible):
    visible(None, files=["nvidia10", "nvidia2", "nvidia0"])
    assert share(1) == {VARIABLE: "2"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"local rank 2 needs GPU 2, but this node has 2 \(CUDA_VISIBLE_DEVICES=0,1\)"),
        ({"pipeline_parallel_size": 3}, "needs GPUs 6 to 8, but this node has 2"),
    ],
)
def test_too_few_are_refused_with_both_numbers(visible, values, message):
    visible("0,1")
    with pytest.raises(LaunchError, match=message):
        share(2, **values)


@pytest.mark.parametrize(
    ("found", "values"),
    [
        ("0,1", {"data_parallel_size": 1}),
        ("0,1", {"device": "cpu"}),
        ("", {"device": "auto"}),
        ("-1", {"device": "auto"}),
        ("none", {"device": "auto"}),
        ("NoDevFiles", {"device": "auto"}),
        ("-1,0,1", {"device": "auto"}),
        (None, {"device": "auto"}),
    ],
)
def test_there_is_nothing_to_share_out(visible, found, values):
    visible(found)
    assert share(0, **values) == {}


@pytest.mark.parametrize(
    ("value", "values", "number"),
    [
        ("0,1,2,3", {"tensor_parallel_size": 2}, 2),
        ("0,1,2", {}, 3),
        ("0, 1, -1, 2", {}, 2),
        ("MIG-1b2c/1/0,GPU-1b2c", {}, 2),
        ("", {}, 1),
        ("0,1", {"device": "cpu"}, 1),
    ],
)
def test_places_for_engines(visible, value, values, number):
    visible(value)
    config = served_config(**{"device": "cuda", "executor": "mp", **values})
    assert num_places(config) == number
