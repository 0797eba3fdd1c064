"""The conformance suite of load balancers: each line of their contract is a test. Test process.

from tenonry_testkit.load_balancer import LoadBalancerContract

class TestMine(LoadBalancerContract):
    load_balancer = "my_package:MyLoadBalancer"
"""

from __future__ import annotations

import contextlib
import inspect
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import hypothesis.strategies as st
import msgspec
import numpy as np
from hypothesis import Phase

from tenonry.config import EngineConfig
from tenonry.messages import EngineCoreRequest
from tenonry.sampling_params import SamplingParams
from tenonry_scale_out.load_balancer import LOAD_BALANCERS, LoadBalancer, LoadBalancerContext
from tenonry_testkit.search import PHASES, search
from tenonry_testkit.targets import resolve_target
from tenonry_testkit.wall_clock import WallClockTrap

MAX_ENGINES = 6
REQUESTS_PER_ENGINE = 100
LEAST_SHARE = 0.25  # of an equal share


class Ask(NamedTuple):
    """One call of `pick`: a prompt with the prefix of its family, the candidates, and every engine's load."""

    family: int
    length: int
    candidates: tuple[int, ...]
    loads: tuple[int, ...]


def asks() -> st.SearchStrategy[Ask]:
    """Draw calls while engines join, leave and die."""
    indexes = st.sets(st.integers(0, MAX_ENGINES - 1), min_size=1)
    return st.builds(
        Ask,
        family=st.integers(0, 2),
        length=st.integers(0, 70),
        candidates=indexes.map(sorted).map(tuple),
        loads=st.tuples(*[st.integers(0, 40)] * MAX_ENGINES),
    )


def make_request(number: int, family: int, length: int, **fields: Any) -> EngineCoreRequest:
    """A request whose prompt is the beginning of its family's tokens."""
    draw = random.Random(family)
    ids = [draw.randrange(1000) for _ in range(length)]
    return EngineCoreRequest(
        handle=number + 1,
        request_id=f"r{number}",
        prompt_token_ids=np.array(ids, np.int32),
        sampling_params=SamplingParams(),
        **fields,
    )


class LoadBalancerContract:
    """Subclass in a test module and name the `load_balancer`; `options` are its own.

    `fair`: False for a balancer with preferred engines, named in its docstring. `config` holds further fields of
    EngineConfig; `effort` multiplies the number of examples.
    """

    load_balancer: ClassVar[str | type[LoadBalancer] | None] = None
    options: ClassVar[dict[str, Any]] = {}
    config: ClassVar[dict[str, Any]] = {}
    fair: ClassVar[bool] = True
    effort: ClassVar[float] = 1.0
    phases: ClassVar[Sequence[Phase]] = PHASES

    # ------------------------------------------------------------------ tools, for tests of your own
    def build(self, seed: int = 0) -> LoadBalancer:
        """Build a fresh load balancer like the kernel."""
        cls, options, _ = resolve_target(LOAD_BALANCERS, self.load_balancer, self.options)
        config = EngineConfig(model="fake", **self.config)
        made: LoadBalancer = cls(LoadBalancerContext(config, options=options, seed=seed))
        return made

    def pick(self, balancer: LoadBalancer, number: int, ask: Ask) -> int:
        """Make one call and check that the result is a candidate."""
        request = make_request(number, ask.family, ask.length)
        chosen = balancer.pick(request, ask.candidates, ask.loads.__getitem__)
        assert chosen in ask.candidates, f"{chosen!r} is none of the candidates {ask.candidates}"
        return chosen

    def _play(self, balancer: LoadBalancer, calls: Sequence[Ask]) -> list[int]:
        return [self.pick(balancer, number, ask) for number, ask in enumerate(calls)]

    def _search(
        self, strategy: st.SearchStrategy[Any], check: Callable[[Any], object], examples: int = 40
    ) -> None:
        search(strategy, check, max(1, round(examples * self.effort)), self.phases)

    # ------------------------------------------------------------------ the contract
    def test_it_is_a_load_balancer_that_the_kernel_accepts(self) -> None:
        """It resolves, implements the interface in a version that the kernel drives, and can be built."""
        assert isinstance(self.build(), LoadBalancer)

    def test_it_picks_a_candidate(self) -> None:
        """For any prompts and loads, over any sequence of calls."""
        self._search(st.lists(asks(), max_size=12), lambda calls: self._play(self.build(), calls))

    def test_engines_leave_and_join(self) -> None:
        """A remembered engine that left is not picked; an engine that joined can be picked."""
        idle = (0,) * MAX_ENGINES

        def change(drawn: tuple[int, int]) -> None:
            family, length = drawn
            balancer = self.build()
            all_engines = tuple(range(MAX_ENGINES))
            for number in range(MAX_ENGINES):
                home = self.pick(balancer, number, Ask(family, length, all_engines, idle))
                rest = tuple(index for index in all_engines if index != home)
                self.pick(balancer, number, Ask(family, length, rest, idle))
                self.pick(balancer, number, Ask(family, length, (home,), idle))

        self._search(st.tuples(st.integers(0, 5), st.integers(0, 70)), change, 20)

    def test_a_single_candidate_is_picked(self) -> None:
        """The only remaining engine, or that of `data_parallel_rank`, receives the request, however busy."""
        balancer = self.build()
        for rank in (0, 3, 1):
            request = make_request(rank, rank, 40, data_parallel_rank=rank)
            assert balancer.pick(request, (rank,), lambda index: 1000) == rank

    def test_the_same_seed_and_calls_give_the_same_picks(self) -> None:
        """All randomness is from the context's seed."""

        def twice(drawn: tuple[int, list[Ask]]) -> None:
            seed, calls = drawn
            first = self._play(self.build(seed), calls)
            second = self._play(self.build(seed), calls)
            assert first == second, f"seed {seed} gave {first}, and then {second}"

        calls = st.lists(asks(), min_size=4, max_size=24)
        self._search(st.tuples(st.integers(0, 99), calls), twice, 20)

    def test_two_do_not_share_what_they_remember(self) -> None:
        """Two front ends of one process, or two tests, do not affect each other's picks."""

        def beside(calls: list[Ask]) -> None:
            alone = self._play(self.build(), calls)
            first = self.build()
            other = self.build()
            picks = []
            for number, ask in enumerate(calls):
                picks.append(self.pick(first, number, ask))
                self.pick(other, number, ask)
            assert picks == alone, f"alone it picked {alone}, beside another {picks}"

        self._search(st.lists(asks(), min_size=4, max_size=24), beside, 20)

    def test_unrelated_requests_spread_over_idle_engines(self) -> None:
        """Each engine receives at least a quarter of an equal share; an unfair balancer documents its preference."""
        if not self.fair:
            cls, _, name = resolve_target(LOAD_BALANCERS, self.load_balancer, self.options)
            assert inspect.getdoc(cls), f"{name} is not fair: say in its docstring what it prefers"
            return
        for num_engines in (2, 3, MAX_ENGINES):
            candidates = tuple(range(num_engines))
            balancer = self.build()
            picks: Counter[int] = Counter()
            for number in range(REQUESTS_PER_ENGINE * num_engines):
                ask = Ask(number, 40, candidates, (0,) * num_engines)
                picks[self.pick(balancer, number, ask)] += 1
            least = min(picks[index] for index in candidates)
            assert least >= LEAST_SHARE * REQUESTS_PER_ENGINE, (
                f"of {num_engines} idle engines one got {least} of {picks.total()} requests"
            )

    def test_requests_are_not_changed(self) -> None:
        """The engine receives the request unchanged."""

        def keep(ask: Ask) -> None:
            request = make_request(1, ask.family, ask.length)
            before = msgspec.structs.asdict(request) | {
                "prompt_token_ids": request.prompt_token_ids.tolist()
            }
            self.build().pick(request, ask.candidates, ask.loads.__getitem__)
            after = msgspec.structs.asdict(request) | {
                "prompt_token_ids": request.prompt_token_ids.tolist()
            }
            assert after == before

        self._search(asks(), keep, 20)

    def test_the_wall_clock_is_not_read(self) -> None:
        """The picks depend on calls and seed alone: every clock raises during a pick."""
        balancer = self.build()
        package = type(balancer).__module__.partition(".")[0]
        with contextlib.closing(WallClockTrap([package])) as trap, trap.watched():
            for number in range(50):
                self.pick(balancer, number, Ask(number % 3, 40, (0, 1, 2), (1, 0, 2)))
