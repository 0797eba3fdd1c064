"""The placement groups of a fleet: one per engine, given by the user or made here. Front end; imports Ray.

A group holds a bundle per rank and then one for the engine's process (RA-3, RA-5).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from ray.util.placement_group import PlacementGroup

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.interfaces.launcher import EngineSpec
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry_executor_ray import placement
from tenonry_executor_ray.executor import RayExecutor
from tenonry_executor_ray.options import RayLauncherOptions


class EngineGroup(NamedTuple):
    """Placement group of one engine; `created` if we have to remove it."""

    group: PlacementGroup
    created: bool

    def release(self) -> None:
        if self.created:
            placement.remove_group(self.group)


class EngineGroups:
    """Finds or makes the group of each engine."""

    def __init__(self, config: EngineConfig, options: RayLauncherOptions, own_address: str) -> None:
        self._config = config
        self._options = options
        self._own_address = own_address
        self.ranks_are_actors = False  # until `provide` knows the executor

    @cached_property
    def gpu(self) -> bool:
        """True if each rank gets a GPU."""
        return placement.uses_gpu(self._config, placement.nodes(self._own_address))

    def provide(self, specs: Sequence[EngineSpec]) -> list[EngineGroup]:
        """One group per engine, all reserved. Raises ConfigError, and leaves nothing behind."""
        executor = PluginPlan.decode(specs[0].plan_text).get("executor")
        self.ranks_are_actors = issubclass(load_class(executor), RayExecutor)
        if self._options.placement_group:
            return self._given(specs)
        return self._create(specs)

    def _given(self, specs: Sequence[EngineSpec]) -> list[EngineGroup]:
        names = self._options.placement_group
        wanted = self._config.data_parallel_size
        last = max(spec.engine_index for spec in specs)
        if len(names) != wanted or last >= len(names):
            raise ConfigError(
                f"placement_group names {len(names)} groups ({', '.join(names)}), but there are "
                f"{max(wanted, last + 1)} engines; name one group per engine, or none"
            )
        bundles = self._config.world_size + 1
        found = [(names[spec.engine_index], f"engine {spec.engine_index}") for spec in specs]
        return [
            EngineGroup(placement.find_group(name, bundles, who), created=False)
            for name, who in found
        ]

    def _create(self, specs: Sequence[EngineSpec]) -> list[EngineGroup]:
        bundles = self._bundles()
        single = self._fits_one_node(bundles)
        local = self._config.data_parallel_size_local
        here = None if local is None else sum(spec.engine_index < local for spec in specs)
        homes = (
            placement.choose_nodes(self._own_address, bundles, len(specs), here)
            if single
            else [""] * len(specs)
        )
        made: list[EngineGroup] = []
        try:
            for spec, home in zip(specs, homes, strict=True):
                name = f"dp_rank_{spec.engine_index}"
                wanted = placement.pinned(bundles, home) if single else bundles
                strategy = "STRICT_PACK" if single else "PACK"
                made.append(
                    EngineGroup(placement.create_group(name, wanted, strategy), created=True)
                )
        except BaseException:
            for group in made:
                group.release()
            raise
        return made

    def _bundles(self) -> list[placement.Bundle]:
        ranks = placement.rank_bundles(
            self._config.world_size, self._options.num_cpus_per_rank, gpu=self.gpu
        )
        return [*ranks, {"CPU": self._options.num_cpus}]

    def _fits_one_node(self, bundles: Sequence[placement.Bundle]) -> bool:
        """Only the executor `ray` can spread the ranks of an engine, and only when no node can hold them all."""
        if not self.ranks_are_actors:
            return True
        need = placement.total(bundles)
        if any(node.fits(need, node.total) for node in placement.nodes(self._own_address)):
            return True
        placement.check_cluster_holds(bundles, "an engine")
        return False
