"""Placement of engines on nodes, choice of the cluster, and validation of options; no Ray runs (RA-5)."""

from __future__ import annotations

import socket

import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, LaunchError
from tenonry_executor_ray.options import RayLauncherOptions


def node(address, cpus, gpus=0, free_cpus=None):
    from tenonry_executor_ray.placement import NodeRoom

    total = {"CPU": float(cpus), "GPU": float(gpus)}
    return NodeRoom(
        address, total, {**total, "CPU": float(cpus if free_cpus is None else free_cpus)}
    )


@pytest.fixture
def choose(monkeypatch):
    """`choose(nodes, bundles, count, local)`: the chosen nodes, without waiting for room."""
    from tenonry_executor_ray import placement

    monkeypatch.setattr(placement, "ROOM_TIMEOUT_S", 0.0)

    def run(room, bundles, count, local=None):
        monkeypatch.setattr(placement, "nodes", lambda own: room)
        return placement.choose_nodes("a", bundles, count, local)

    return run


ENGINE = [{"CPU": 1.0}, {"CPU": 1.0}]
ON_GPUS = [{"GPU": 1.0}, {"GPU": 1.0}, {"CPU": 1.0}]


@pytest.mark.parametrize(
    ("room", "bundles", "count", "local", "expected"),
    [
        ([node("a", 4), node("b", 4)], ENGINE, 3, None, ["a", "a", "b"]),
        ([node("a", 4), node("b", 4)], ENGINE, 3, 1, ["a", "b", "b"]),
        ([node("a", 4), node("b", 4)], ENGINE, 2, 0, ["b", "b"]),
        ([node("a", 4, free_cpus=1), node("b", 4)], ENGINE, 2, None, ["b", "b"]),
        ([node("a", 8, 3), node("b", 8, 4)], ON_GPUS, 3, None, ["a", "b", "b"]),
    ],
)
def test_our_node_comes_first(choose, room, bundles, count, local, expected):
    assert choose(room, bundles, count, local) == expected


@pytest.mark.parametrize(
    ("room", "bundles", "count", "local", "text"),
    [
        (
            [node("a", 8, 1), node("b", 8, 1)],
            ON_GPUS,
            1,
            None,
            r"an engine needs 2 GPU and 1 CPU, all on one node: node a",
        ),
        (
            [node("a", 2), node("b", 4)],
            ENGINE,
            3,
            2,
            "3 engines need 2 CPU each, 2 of them on this node",
        ),
        (
            [node("a", 4, free_cpus=3)],
            ENGINE,
            2,
            None,
            r"node a has 3 of 4 CPU free \(room for 1\)",
        ),
    ],
)
def test_a_lack_of_room_is_counted_per_node(choose, room, bundles, count, local, text):
    with pytest.raises(ConfigError, match=text):
        choose(room, bundles, count, local)


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [("auto", 0, False), ("auto", 2, True), ("cpu", 2, False), ("cuda", 0, True)],
)
def test_the_device_decides_about_gpus(device, gpus, expected):
    from tenonry_executor_ray.placement import rank_bundles, uses_gpu

    config = EngineConfig(model="m", device=device)
    assert uses_gpu(config, [node("a", 4), node("b", 4, gpus)]) is expected
    assert rank_bundles(2, 0.5, gpu=expected) == [{"GPU": 1.0} if expected else {"CPU": 0.5}] * 2


def test_the_cluster_of_this_node_is_used_if_it_lives(monkeypatch):
    """RA-1. Ray leaves a note of the cluster that it started last, and believes it for a minute."""
    from tenonry_executor_ray import session

    with socket.create_server(("127.0.0.1", 0)) as server:
        living = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(session, "read_ray_address", lambda: living)
        assert (
            session.find_cluster(None)
            == session.find_cluster("auto")
            == session.find_cluster(living)
            == living
        )
    monkeypatch.setattr(session, "read_ray_address", lambda: "127.0.0.1:1")
    assert session.find_cluster(None) == "local"
    for address in ("auto", "127.0.0.1:1", "[::1]:1"):
        with pytest.raises(LaunchError, match="no Ray cluster answers at"):
            session.find_cluster(address)
    monkeypatch.setattr(session, "read_ray_address", lambda: None)
    assert (session.find_cluster(None), session.find_cluster("auto")) == ("local", "auto")


def test_group_names_may_come_as_one_word():
    """As passed by `--launcher-option placement_group=a,b`."""
    assert RayLauncherOptions(placement_group="a, b").placement_group == ("a", "b")
    assert RayLauncherOptions(placement_group=["a"]).placement_group == ("a",)
