"""Interface of load balancers: the choice among several engines for a request. Front end; each has one, called on its
event loop.

A front end with a single engine builds none. A request with `data_parallel_rank` goes to this engine, without a load
balancer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from tenonry.config import EngineConfig, PluginChoice
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import Plugin, PluginContext
from tenonry.messages import EngineCoreRequest
from tenonry.plugin import Point
from tenonry.plugin.checks import load_options
from tenonry.plugin.manager import blamed, resolve_point


@dataclass(slots=True)
class LoadBalancerContext(PluginContext):
    """`seed` is for all randomness: another one in each front end, so that two do not choose the same engines."""

    _: KW_ONLY
    seed: int = 0


class LoadBalancer(Plugin[LoadBalancerContext], ABC):
    """Chooses an engine for each request.

    Contract:
    - `pick` answers with one of the candidates, in microseconds: it starts nothing and waits for nothing.
    - The same seed, options and calls give the same answers; no clock is read.
    - Candidates differ between calls: engines join, leave and die, and an index may come back with a new engine.
    - Unrelated requests on engines of equal load spread over all of them.

    An exception of `pick`, or an answer that is no candidate, fails that one request, with the plugin named: no other
    request depends on what it remembers.
    """

    @abstractmethod
    def pick(
        self, request: EngineCoreRequest, candidates: Sequence[int], load: Callable[[int], int]
    ) -> int:
        """The index of the engine that gets `request`: one of `candidates`, which ascend and are never empty.

        `load(index)` counts the requests of that engine, waiting and running, of all front ends.
        """


LOAD_BALANCERS = Point(
    "tenonry.load_balancers",
    LoadBalancer,
    dict.fromkeys(
        ("affinity", "least-loaded", "prefill-decode", "round-robin"), "tenonry-scale-out"
    ),
)


def build_load_balancer(
    choice: PluginChoice, config: EngineConfig, seed: int
) -> tuple[LoadBalancer, PluginRecord]:
    """A load balancer and its record. Raises PluginError."""
    found, record = resolve_point(LOAD_BALANCERS, choice)
    context = LoadBalancerContext(config, options=load_options(record, found), seed=seed)
    with blamed(record, "its constructor"):
        return found(context), record


def check_load_balancer(choice: PluginChoice, config: EngineConfig) -> None:
    """Raises PluginError or ConfigError, before anything starts."""
    found, record = resolve_point(LOAD_BALANCERS, choice)
    with blamed(record, "check"):
        found.check(config, load_options(record, found))
