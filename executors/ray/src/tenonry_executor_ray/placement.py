"""Placement of engines and ranks: free resources of nodes, and placement groups on them. Front end and engine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import RayError
from ray.util import get_placement_group, placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry_executor_ray.session import bounded, words

Bundle = dict[str, float]
PIN = 0.001  # of the resource `node:ADDRESS`, which every node has one of: it ties a bundle to its node
READY_TIMEOUT_S = 30.0
ROOM_TIMEOUT_S = 10.0  # resources just released take a moment to appear
RELEASE_TIMEOUT_S = 5.0
EPSILON = 1e-6


class NodeRoom(NamedTuple):
    """One node: its address, its resources and those that are free now."""

    address: str
    total: Mapping[str, float]
    free: Mapping[str, float]

    def fits(self, need: Bundle, resources: Mapping[str, float]) -> int:
        """Number of times that `need` fits into `resources`, which are this node's."""
        return int(
            min((resources.get(name, 0.0) + EPSILON) // amount for name, amount in need.items())
        )

    def describe(self, need: Bundle) -> str:
        parts = [
            f"{self.free.get(name, 0):g} of {self.total.get(name, 0):g} {name}" for name in need
        ]
        room = self.fits(need, self.free)
        return f"node {self.address} has {' and '.join(parts)} free (room for {room})"


def nodes(own_address: str) -> list[NodeRoom]:
    """The nodes that are alive: ours first, then by address (RA-5)."""
    free = available_resources_per_node()
    found = [
        NodeRoom(node["NodeManagerAddress"], node["Resources"], free.get(node["NodeID"], {}))
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address != own_address, node.address))


def uses_gpu(config: EngineConfig, room: Sequence[NodeRoom]) -> bool:
    """Return True if ranks get a GPU each. Raises ConfigError for a device that Ray has to choose."""
    if config.device.startswith("cuda:"):
        raise ConfigError(
            f"device={config.device}: Ray gives each rank a GPU of its own; use device=cuda"
        )
    if config.device == "auto":
        return any(node.total.get("GPU") for node in room)
    return config.device == "cuda"


def rank_bundles(world_size: int, num_cpus: float, *, gpu: bool) -> list[Bundle]:
    """One bundle per rank."""
    return [{"GPU": 1.0} if gpu else {"CPU": num_cpus} for _ in range(world_size)]


def total(bundles: Sequence[Bundle]) -> Bundle:
    """The sum of bundles."""
    names = dict.fromkeys(name for bundle in bundles for name in bundle)
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}


def choose_nodes(
    own_address: str, bundles: Sequence[Bundle], count: int, local: int | None
) -> list[str]:
    """Choose the node of each of `count` engines: ours up to its capacity (`local` of them, if set), then the others.

    Raises ConfigError with the available and the required resources. Waits a moment for resources being released.
    """
    need = total(bundles)
    deadline = time.monotonic() + ROOM_TIMEOUT_S
    while True:
        room = nodes(own_address)
        chosen = _fill(room, need, count, local)
        if len(chosen) == count:
            return chosen
        enough = sum(node.fits(need, node.total) for node in room) >= count
        if not enough or time.monotonic() > deadline:
            raise ConfigError(_no_room(room, need, count, local))
        time.sleep(0.2)


def _fill(room: Sequence[NodeRoom], need: Bundle, count: int, local: int | None) -> list[str]:
    chosen: list[str] = []
    for index, node in enumerate(room):
        fits = node.fits(need, node.free)
        if index == 0 and local is not None:
            if fits < local:
                return []
            fits = local
        chosen += [node.address] * fits
    return chosen[:count]


def _no_room(room: Sequence[NodeRoom], need: Bundle, count: int, local: int | None) -> str:
    wanted = " and ".join(f"{amount:g} {name}" for name, amount in need.items())
    here = "" if local is None else f", {local} of them on this node"
    who = f"an engine needs {wanted}" if count == 1 else f"{count} engines need {wanted} each"
    return (
        f"{who}{here}, all on one node: {'; '.join(node.describe(need) for node in room)}; lower "
        "--data-parallel-size, add nodes, or use --executor ray for an engine that one node cannot hold"
    )


def pinned(bundles: Sequence[Bundle], address: str) -> list[Bundle]:
    """The bundles, tied to one node."""
    return [{**bundle, f"node:{address}": PIN} for bundle in bundles]


def create_group(name: str, bundles: list[Bundle], strategy: str) -> PlacementGroup:
    """A group whose resources are reserved. Raises ConfigError, and leaves no group, when the cluster has no room, or
    a group of that name in our namespace.
    """
    try:
        group = placement_group(bundles, strategy=strategy, name=name)
    except RayError as error:
        raise ConfigError(
            f"placement group '{name}' cannot be made ({words(error)}); instances that share a cluster need a Ray "
            "namespace each: --launcher-option namespace=NAME"
        ) from error
    if not group.wait(READY_TIMEOUT_S):
        remove_group(group)
        raise ConfigError(
            f"placement group {name or group.id.hex()} ({strategy}) found no room within {READY_TIMEOUT_S:g} s: it "
            f"needs {total(bundles)}; {'; '.join(node.describe(total(bundles)) for node in nodes(''))}"
        )
    return group


def check_cluster_holds(bundles: Sequence[Bundle], what: str) -> None:
    """Raise ConfigError if not even an idle cluster could hold the bundles, wherever they went."""
    room = nodes("")
    need = total(bundles)
    for name, amount in need.items():
        there = sum(node.total.get(name, 0.0) for node in room)
        if there + EPSILON < amount:
            raise ConfigError(
                f"{what} needs {amount:g} {name}, but the cluster has {there:g}: "
                f"{'; '.join(node.describe(need) for node in room)}"
            )


def find_group(name: str, num_bundles: int, what: str) -> PlacementGroup:
    """Find an existing placement group. Raises ConfigError if it is missing, or has too few bundles for `what`."""
    try:
        group = get_placement_group(name)
    except ValueError as error:
        raise ConfigError(
            f"placement group '{name}' cannot be found ({words(error)}); give its namespace with the option "
            "namespace, if it has another one"
        ) from None
    if len(group.bundle_specs) < num_bundles:
        raise ConfigError(
            f"placement group '{name}' has {len(group.bundle_specs)} bundles, but {what} needs {num_bundles}"
        )
    return group


def remove_group(group: PlacementGroup) -> None:
    """Remove the group and release its resources."""
    bounded(lambda: remove_placement_group(group), RELEASE_TIMEOUT_S)


def address_of(group: PlacementGroup, bundle: int) -> str:
    """Display name of the node that holds a bundle of a group."""
    node_id = ray.util.placement_group_table(group).get("bundles_to_node_id", {}).get(bundle)
    found = (node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == node_id)
    return next(found, "an unknown address")
