"""The conformance suite of schedulers: each line of the contract is a test. Test process; no torch, no GPU.

    from tenonry_testkit.scheduler import SchedulerContract

    class TestMine(SchedulerContract):
        scheduler = "my_package:MyScheduler"      # or an entry-point name, path.py:Class, or the class itself

A worker with predictable tokens is the oracle: a request's tokens must equal those of a run alone, under any other
load.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import Phase
from hypothesis.errors import Flaky
from pydantic import BaseModel

from tenonry.config import PluginChoice
from tenonry.info import PluginRecord
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry.plugin import Point
from tenonry.plugin.manager import resolve_point
from tenonry_testkit import scenarios_blocks, scenarios_endings, scenarios_fairness, scenarios_rows
from tenonry_testkit.fakes.tokens import RECURRENT
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.machine import machine_for
from tenonry_testkit.rules import SAME_DECISIONS, RuleBroken
from tenonry_testkit.scheduler_cache import CacheSuite
from tenonry_testkit.scheduler_endings import EndingSuite
from tenonry_testkit.scheduler_limits import LimitSuite
from tenonry_testkit.scheduler_numbers import NumberSuite
from tenonry_testkit.scheduler_policy import PolicySuite
from tenonry_testkit.scheduler_transfers import TransferSuite
from tenonry_testkit.search import PHASES, search, search_machine
from tenonry_testkit.spec import CRAMPED, ROOMY, HarnessSpec
from tenonry_testkit.targets import resolve_target
from tenonry_testkit.traffic import Op, Send, play, sends, storms

DEPTHS = st.integers(1, 3)


class SchedulerContract(
    CacheSuite, EndingSuite, LimitSuite, NumberSuite, PolicySuite, TransferSuite
):
    """Subclass in a test module, name the `scheduler`; `options` are its own, `policy` is for schedulers with policies.

    `config` holds further fields of EngineConfig. `effort` multiplies the number of examples of this suite.
    `caches_prefixes`: True requires cache hits of repeated prompts, and that the least recently used ones leave first.
    `is_continuous`: True requires that requests start beside running ones.
    """

    scheduler: ClassVar[str | type[Scheduler] | None] = None
    options: ClassVar[dict[str, Any]] = {}
    policy: ClassVar[str | dict[str, Any] | None] = None
    config: ClassVar[dict[str, Any]] = {}
    effort: ClassVar[float] = 1.0
    phases: ClassVar[Sequence[Phase]] = PHASES
    _target: ClassVar[tuple[Any, BaseModel, str]]
    _points: ClassVar[dict[tuple[str, str], tuple[Any, PluginRecord]]]

    # ------------------------------------------------------------------ tools, for tests of your own
    def build(self, context: SchedulerContext) -> Scheduler:
        """Build the scheduler under test like an engine."""
        scheduler: Scheduler = self._resolved()[0](context)
        return scheduler

    def harness(self, spec: HarnessSpec = ROOMY, **parts: Any) -> SchedulerHarness:
        """Return a fresh engine around the scheduler under test; `parts`: further arguments of `SchedulerHarness`."""
        _, options, name = self._resolved()
        spec = self._configured(spec)
        return SchedulerHarness(
            self.build, spec, plugin_name=name, options=options, resolve=self._resolve, **parts
        )

    def _configured(self, spec: HarnessSpec) -> HarnessSpec:
        """Add the suite's `config` and `policy`."""
        fields = {**dict(spec.config), **self.config}
        if self.policy is not None:
            fields["scheduling_policy"] = PluginChoice.model_validate(self.policy)
        return dataclasses.replace(spec, config=tuple(fields.items()))

    @classmethod
    def _resolved(cls) -> tuple[Any, BaseModel, str]:
        """(class, options, name) of the scheduler; resolved once per suite, like in an engine."""
        if "_target" not in cls.__dict__:
            cls._target = resolve_target("scheduler", cls.scheduler, cls.options)
        return cls._target

    @classmethod
    def _resolve(cls, point: Point, choice: PluginChoice) -> tuple[Any, PluginRecord]:
        """Resolve the scheduler's own extension points; once per suite."""
        if "_points" not in cls.__dict__:
            cls._points = {}
        key = (point.group, choice.model_dump_json())
        if key not in cls._points:
            cls._points[key] = resolve_point(point, choice)
        return cls._points[key]

    def _search(
        self, strategy: st.SearchStrategy[Any], check: Callable[[Any], object], examples: int = 12
    ) -> None:
        search(strategy, check, max(1, round(examples * self.effort)), self.phases)

    def _storm(
        self, spec: HarnessSpec, programs: st.SearchStrategy[list[Op]], examples: int = 12
    ) -> None:
        """Play programs at all depths and drain; the harness checks every rule."""

        def check(drawn: tuple[int, list[Op]]) -> None:
            depth, ops = drawn
            harness = self.harness(dataclasses.replace(spec, depth=depth))
            play(harness, ops)
            harness.drain()

        self._search(st.tuples(DEPTHS, programs), check, examples)

    # ------------------------------------------------------------------ the plugin
    def test_it_is_a_scheduler_that_the_kernel_accepts(self) -> None:
        """It resolves, implements the interface in a version that the kernel drives, and is idle when it is new.

        Its steps are numbered from 0.
        """
        harness = self.harness()
        assert isinstance(harness.scheduler, Scheduler)
        scenarios_endings.idle_is_idle(harness)

    # ------------------------------------------------------------------ what a step may contain
    @pytest.mark.parametrize("field", scenarios_rows.REQUESTS)
    def test_a_new_row_has_the_fields_of_its_request(self, field: str) -> None:
        """Workers receive each request unchanged, also after preemption."""
        for depth in (1, 2):
            scenarios_rows.rows_have_their_fields(self.harness, field, depth)

    @pytest.mark.parametrize("seqs, budget", [(3, 5), (4, 4), (1, 9)])
    def test_limits_are_never_exceeded(self, seqs: int, budget: int) -> None:
        """max_num_batched_tokens, max_num_seqs and max_model_len hold in every step."""
        spec = HarnessSpec(max_num_seqs=seqs, max_num_batched_tokens=budget, num_blocks=20)
        self._storm(spec, storms(sends(max_length=31, max_output=40)), 6)

    def test_long_prompts_wait_for_a_whole_step_without_chunked_prefill(self) -> None:
        """With chunked prefill off, a row computes all of its tokens in one step that can hold them."""
        config = (("enable_chunked_prefill", False),)
        self._storm(
            HarnessSpec(max_num_batched_tokens=32, num_blocks=12, config=config),
            storms(sends(max_length=31)),
        )

    @pytest.mark.parametrize("chunked", [True, False])
    def test_a_step_encodes_at_most_max_encoder_tokens(self, chunked: bool) -> None:
        """Images of more tokens than `max_encoder_tokens` are encoded over several steps, all of them eventually."""
        config = (("max_images", 4), ("max_encoder_tokens", 6), ("enable_chunked_prefill", chunked))
        spec = dataclasses.replace(
            ROOMY, max_num_batched_tokens=16 if chunked else 32, config=config
        )
        self._storm(spec, storms(sends(max_length=31, images=True), aborts=True), 8)

    def test_no_step_ends_in_a_piece_that_must_stay_whole(self) -> None:
        """Images with bidirectional attention are computed in one step each, all of them eventually."""
        spec = dataclasses.replace(ROOMY, max_num_batched_tokens=16, config=(("max_images", 4),))
        for pieces in (1, 2):  # of each image
            fields = {"length": 20, "whole": True, "pieces": pieces}
            asks = [Send(family=number, images=(5, 9 - number), **fields) for number in range(4)]
            scenarios_endings.play_out(self.harness(spec), asks)
        requests = sends(max_length=31, images=True, whole=True)
        self._storm(spec, storms(requests, aborts=True), 8)

    def test_a_step_has_at_most_max_loras_adapters(self) -> None:
        """Rows of more different adapters (LoRA) than `max_loras` never share a step; all of them run eventually."""
        spec = dataclasses.replace(ROOMY, config=(("max_loras", 1),))
        self._storm(spec, storms(aborts=True), 8)

    def test_only_known_unfinished_requests_run(self) -> None:
        """Aborted, finished and unknown requests are never scheduled, whatever was in flight."""
        self._storm(ROOMY, storms(aborts=True, failures=True), 16)

    def test_a_block_has_one_writer(self) -> None:
        """Shared prefixes, reused blocks, steps in flight: no block is written by two rows."""
        self._storm(
            dataclasses.replace(CRAMPED, max_num_seqs=4), storms(sends(families=1), aborts=True), 16
        )

    @pytest.mark.parametrize("block_size, windows", [(1, (0,)), (4, (0, 6)), (8, (0,))])
    def test_every_token_has_a_slot(self, block_size: int, windows: tuple[int, ...]) -> None:
        """A row's block table covers all its tokens, in every KV group."""
        spec = HarnessSpec(block_size=block_size, num_blocks=40 // block_size + 4, windows=windows)
        self._storm(spec, storms(sends(max_output=16, stops=False)), 6)

    def test_length_limits_are_never_overrun(self) -> None:
        """No token is even scheduled beyond max_tokens or max_model_len, however many steps are in flight."""
        self._storm(ROOMY, storms(sends(max_length=31, max_output=12, stops=False)))

    # ------------------------------------------------------------------ several steps in flight
    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_right_at_depth(self, depth: int) -> None:
        """Any engine behaviour, in any order, with `depth` steps in flight: tokens equal those of a solo run."""
        machine = machine_for(self.harness, HarnessSpec(depth=depth))
        search_machine(machine, max(1, round(45 * self.effort)), 30, self.phases)

    @pytest.mark.parametrize("depth", [2, 3])
    def test_stale_results_are_dropped(self, depth: int) -> None:
        """Rows are reused while results are in flight: no request receives another's token."""
        for seqs in (1, 2):
            spec = HarnessSpec(depth=depth, max_num_seqs=seqs, num_blocks=16)
            scenarios_endings.rows_change_hands(self.harness(spec))
        program = storms(sends(max_length=6), aborts=True, resets=True)
        spec = HarnessSpec(depth=depth, max_num_seqs=2, num_blocks=10)
        self._search(program, lambda ops: scenarios_endings.play_out(self.harness(spec), ops))

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_rows_wait_where_tokens_are_not_fed_back(self, depth: int) -> None:
        """With feeds_back_tokens False, a row is not scheduled before its sampled token is known."""
        spec = HarnessSpec(depth=depth, feeds_back=False, num_blocks=14)
        few_ids = self.harness(dataclasses.replace(spec, vocab_size=2))
        scenarios_endings.play_out(few_ids, [Send(length=n, max_tokens=9) for n in range(1, 6)])
        program = storms(aborts=True, resets=True)
        self._search(program, lambda ops: scenarios_endings.play_out(self.harness(spec), ops), 8)

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_rows_with_a_grammar_wait_for_it_and_for_their_tokens(self, depth: int) -> None:
        """Such a row never runs with a pending token, nor before its grammar is compiled."""
        spec = dataclasses.replace(ROOMY, depth=depth, grammar_asks=3)
        asked = st.builds(dataclasses.replace, sends(), has_grammar=st.booleans())
        program = storms(asked, aborts=True, resets=True)
        self._search(program, lambda ops: scenarios_endings.play_out(self.harness(spec), ops), 8)

    # ------------------------------------------------------------------ several tokens in a step
    @pytest.mark.parametrize("short", [0, 3])
    def test_right_in_rounds(self, short: int) -> None:
        """If rows may decode several tokens in a step, or fewer than the limit, tokens equal those of a solo run."""
        rounds = {"round_tokens": 6, "short_rounds": short, "config": (("drafter", "ngram"),)}
        scenarios_endings.rows_leave_rounds(self.harness, **rounds)
        scenarios_endings.requests_end_at_stop_ids(self.harness, **rounds)
        machine = machine_for(self.harness, HarnessSpec(round_tokens=6, short_rounds=short))
        search_machine(machine, max(1, round(25 * self.effort)), 30, self.phases)
        spec = HarnessSpec(round_tokens=8, short_rounds=short, windows=(0, 6), num_blocks=40)
        spec = dataclasses.replace(spec, config=(("drafter", "ngram"),) * bool(short))
        asked = st.builds(
            dataclasses.replace,
            sends(max_length=8, max_output=24),
            stop_after=st.integers(0, 20),
            min_tokens=st.integers(0, 12),
            has_grammar=st.sampled_from([False, short > 0]),
        )
        program = storms(asked, aborts=True, failures=True)
        self._search(program, lambda ops: scenarios_endings.play_out(self.harness(spec), ops), 8)

    # ------------------------------------------------------------------ how requests end
    def test_every_request_ends_exactly_once(self) -> None:
        """Under any sequence of aborts, preemptions, failures and resets each request has one terminal outcome."""
        self._storm(CRAMPED, storms(aborts=True, resets=True, failures=True), 20)

    def test_a_failed_row_ends_alone(self) -> None:
        """The request ends in an error with a text; others are unaffected, and its blocks are not reused as cached."""
        scenarios_endings.a_row_fails(self.harness)
        scenarios_endings.failures_have_codes(self.harness)
        for depth in (1, 2, 3):
            scenarios_endings.a_row_fails_after_its_end(self.harness, depth)
        self._storm(ROOMY, storms(sends(families=1), failures=True))

    def test_log_probabilities_belong_to_their_tokens(self) -> None:
        """A request with log-probabilities receives them with each token, and once for each position of the prompt."""
        asked = st.builds(
            dataclasses.replace,
            sends(),
            logprobs=st.none() | st.integers(0, 2),
            prompt_logprobs=st.none() | st.just(1),
        )
        self._storm(ROOMY, storms(asked, aborts=True, resets=True), 8)

    def test_outputs_go_to_the_client_that_asked(self) -> None:
        """Tokens, events and endings are grouped by client index."""
        asked = st.builds(dataclasses.replace, sends(), client=st.integers(0, 3))
        self._storm(ROOMY, storms(asked, aborts=True), 8)

    def test_gone_rows_are_sent_before_the_end(self) -> None:
        """has_requests() stays true until every row that left was sent to the workers; then it turns false."""
        for depth in (1, 2, 3):
            scenarios_endings.gone_is_sent(self.harness(dataclasses.replace(ROOMY, depth=depth)))

    def test_counts_and_statistics_say_what_is_there(self) -> None:
        """Running and waiting add up in every state; usage is a share; counters only count up."""
        self._search(
            storms(aborts=True, resets=True),
            lambda ops: scenarios_endings.statistics_hold(self.harness(CRAMPED), ops),
            8,
        )

    # ------------------------------------------------------------------ fairness
    def test_no_request_starves(self) -> None:
        """A stream of shorter and more urgent requests does not starve another one.

        A scheduler whose `starvation_free` is False must follow its own order, and finish when the stream ends.
        """
        self._search(
            scenarios_fairness.streams(),
            lambda drawn: scenarios_fairness.a_stream_goes_by(self.harness, *drawn),
            8,
        )

    # ------------------------------------------------------------------ blocks
    def test_all_blocks_come_back(self) -> None:
        """After a storm the pool is whole: a request that needs all of it runs."""
        program = storms(aborts=True, resets=True, failures=True)
        self._search(
            st.tuples(DEPTHS, program),
            lambda drawn: scenarios_blocks.the_pool_is_whole(self.harness, *drawn),
        )

    def test_prefix_cache_changes_no_token(self) -> None:
        """With any cache hits, tokens equal those of a run without a cache."""
        families = sends(families=2, max_length=28)
        self._storm(HarnessSpec(num_blocks=24), storms(families), 12)
        self._storm(HarnessSpec(num_blocks=24, enable_prefix_caching=False), storms(families), 4)

    def test_cached_blocks_are_private(self) -> None:
        """A request with another salt or adapter, with prompt log-probabilities, or after a reset finds nothing."""
        scenarios_blocks.the_cache_is_private(self.harness, HarnessSpec(num_blocks=40))

    def test_preemption_changes_no_token(self) -> None:
        """Requests that outgrow the pool are preempted and resume with unchanged tokens."""
        asked = sends(max_length=8, max_output=30, stops=False)
        self._storm(dataclasses.replace(CRAMPED, max_num_seqs=4), storms(asked), 10)
        self._storm(HarnessSpec(num_blocks=9), storms(asked, resets=True), 10)

    @pytest.mark.parametrize(
        "depth, windows, slots", [(1, (0, RECURRENT), 2), (2, (RECURRENT,), 3)]
    )
    def test_a_snapshot_of_states_changes_no_token(
        self, depth: int, windows: tuple[int, ...], slots: int
    ) -> None:
        """Recurrent layers: rows start from the state of their own tokens, after any saves and evictions."""
        spec = HarnessSpec(depth=depth, windows=windows, num_state_slots=slots)
        machine = machine_for(self.harness, spec)
        search_machine(machine, max(1, round(15 * self.effort)), 20, self.phases)
        roomy = dataclasses.replace(spec, num_blocks=40)
        scenarios_blocks.the_cache_is_private(self.harness, roomy)
        scenarios_endings.a_row_fails(
            self.harness, (depth,), windows=windows, num_state_slots=slots
        )

    @pytest.mark.parametrize(
        "depth, windows, slots",
        [(1, (0, 6), 0), (2, (5,), 0), (2, (0, 4, 4, 9), 0), (2, (7, RECURRENT), 2)],
    )
    def test_a_window_changes_no_token(
        self, depth: int, windows: tuple[int, ...], slots: int
    ) -> None:
        """Sliding groups: released blocks are read by no later step, cached or not."""
        spec = HarnessSpec(depth=depth, windows=windows, num_state_slots=slots)
        machine = machine_for(self.harness, spec)
        search_machine(machine, max(1, round(15 * self.effort)), 20, self.phases)
        roomy = dataclasses.replace(spec, num_blocks=80)
        scenarios_blocks.the_cache_is_private(self.harness, roomy)
        scenarios_endings.a_row_fails(
            self.harness, (depth,), windows=windows, num_state_slots=slots
        )

    # ------------------------------------------------------------------ determinism
    def test_same_calls_give_the_same_decisions(self) -> None:
        """The same calls and the same clock, twice: the same steps, byte for byte. The request_id means nothing."""
        program = storms(sends(max_length=10, max_output=28), aborts=True, resets=True)
        try:
            self._search(
                st.tuples(DEPTHS, program),
                lambda drawn: scenarios_fairness.twice_the_same(self.harness, *drawn),
                8,
            )
        except Flaky as error:
            raise RuleBroken(
                SAME_DECISIONS, "a program that gave two different runs gave equal ones later"
            ) from error

    def test_the_wall_clock_is_not_read(self) -> None:
        """The only clock is the context's: all others raise during calls of the scheduler."""
        scenarios_fairness.no_other_clock(self.harness)
