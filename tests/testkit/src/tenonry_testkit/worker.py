"""The conformance suite of workers: tokens depend only on the request, for any division into steps. Test process.

    from tenonry_testkit.worker import WorkerContract

    class TestMine(WorkerContract):
        worker = "my_package:MyWorker"

        def model(self):
            return ModelInfo(...)          # small: the suite runs some thousand steps

Greedy tokens are compared with those of the same model run one request at a time, so the model should be in a data
type, and have weights, in which no two logits are close to equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

from tenonry.engine.kv_plan import choose_block_size
from tenonry.errors import Unsupported
from tenonry.info import ModelInfo, WorkerFacts
from tenonry.interfaces.scheduler import Scheduler
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.kv_cache import KVCacheGroup, paged
from tenonry.step import ModelRunnerOutput, SchedulerOutput, StepFuture
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.fakes.scheduler import ReferenceScheduler
from tenonry_testkit.flags import requires
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.result_shapes import check_shapes
from tenonry_testkit.scenarios_fairness import encoded
from tenonry_testkit.scenarios_workers import (
    CachingScheduler,
    ScatteringScheduler,
    a_row_fails_alone,
    grammars_are_compiled,
    rows_end_in_rounds,
)
from tenonry_testkit.solo import SoloOracle
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.targets import resolve_target

NUM_STATE_SLOTS = 3


def fitted(spec: HarnessSpec, groups: Sequence[KVCacheGroup]) -> HarnessSpec:
    """Return the engine for these KV groups: with some state slots if any group keeps a state, and blocks for one
    sequence.
    """
    keeps_state = any(group.kind == "recurrent" for group in groups)
    return dataclasses.replace(
        spec,
        windows=tuple(group.window for group in groups),
        num_state_slots=NUM_STATE_SLOTS if keeps_state else 0,
        num_blocks=max(spec.num_blocks, spec.least_blocks(groups)),
    )


def _without_windows(spec: HarnessSpec, groups: Sequence[KVCacheGroup]) -> HarnessSpec:
    """As `fitted`, with blocks for a sequence without releases."""
    least = len(paged(groups)) * -(-spec.max_model_len // spec.block_size)
    return dataclasses.replace(fitted(spec, groups), num_blocks=max(spec.num_blocks, least))


class WorkerContract:
    """Subclass in a test module and name the `worker`; `options` are its own, `config` fields of EngineConfig.

    `supports_…`: False for missing capabilities: `min_tokens`, log-probabilities, restrictions of a row's tokens.

    `spec` is the engine around it: pool, block size, limits. Override `model` for a worker that needs a real one; set
    `loads_once` for slow loading: the serving tests then share one worker, with a new cache each.
    """

    worker: ClassVar[str | type[Worker] | None] = None
    options: ClassVar[dict[str, Any]] = {}
    config: ClassVar[dict[str, Any]] = {}
    spec: ClassVar[HarnessSpec] = HarnessSpec(
        num_blocks=40, max_num_batched_tokens=64, max_model_len=48
    )
    prompt_ids: ClassVar[tuple[int, ...]] = tuple(range(3, 60, 7))
    loads_once: ClassVar[bool] = False
    supports_min_tokens: ClassVar[bool] = True
    supports_logprobs: ClassVar[bool] = True
    supports_allowed_tokens: ClassVar[bool] = True
    _shared: ClassVar[Worker]
    _ready: ClassVar[tuple[Worker, SoloOracle]]

    # ------------------------------------------------------------------ what an author may override
    def model(self) -> ModelInfo:
        """Facts of the model to run."""
        return fake_model(vocab_size=self.spec.vocab_size, max_model_len=self.spec.max_model_len)

    def context(self, **changes: Any) -> WorkerContext:
        """Context for building the worker."""
        _, options, _ = resolve_target("worker", self.worker, self.options)
        config = dataclasses.replace(self.spec, config=tuple(self.config.items())).engine_config()
        context = WorkerContext(
            config, self.model(), max_model_len=self.spec.max_model_len, options=options
        )
        return dataclasses.replace(context, **changes)

    # ------------------------------------------------------------------ tools
    def built(self) -> Worker:
        """Build an unstarted worker; it is shut down at the end of the test."""
        worker: Worker = resolve_target("worker", self.worker, self.options)[0](self.context())
        self._started.append(worker)
        return worker

    def setup_method(self) -> None:
        """Start a list of workers to shut down."""
        self._started: list[Worker] = []

    def started(self, loaded: Worker | None = None) -> Worker:
        """Return a loaded worker with a newly allocated cache."""
        worker = loaded or self.built()
        if loaded is None:
            worker.load()
        groups = list(worker.kv_cache_groups())
        choose_block_size(groups, self.spec.block_size)
        worker.initialize_cache(_without_windows(self.spec, groups).kv_cache(groups))
        worker.warm_up()
        return worker

    def _served(self) -> Worker:
        cls = type(self)
        loaded = cls.__dict__.get("_shared")
        worker = self.started(loaded)
        if self.loads_once and loaded is None:
            cls._shared = worker
            self._started.remove(worker)
        return worker

    def run(
        self,
        spec: HarnessSpec | None = None,
        scheduler: type[Scheduler] = ReferenceScheduler,
        *,
        is_fresh: bool = False,
    ) -> SchedulerHarness:
        """Return an engine around a worker; a second one runs each request alone for the expected tokens."""
        worker = self.started() if is_fresh else self._served()
        oracle = self._oracle()
        groups = tuple(worker.kv_cache_groups())
        spec = fitted(spec or self.spec, groups)
        return SchedulerHarness(scheduler, spec, worker=worker, oracle=oracle, groups=groups)

    def _oracle(self) -> SoloOracle:
        cls = type(self)
        if "_ready" not in cls.__dict__:
            worker = self.started()
            self._started.remove(worker)  # shared until the end of the class
            kinds = [group.kind for group in worker.kv_cache_groups()]
            cls._ready = worker, SoloOracle(worker, self.spec, kinds)
        return cls._ready[1]

    def teardown_method(self) -> None:
        """Shut down workers that the test started, each once."""
        while self._started:
            self._started.pop().shutdown()

    @classmethod
    def teardown_class(cls) -> None:
        """Shut down the workers of all tests."""
        if "_ready" in cls.__dict__:
            cls._ready[0].shutdown()
            del cls._ready
        if "_shared" in cls.__dict__:
            cls._shared.shutdown()
            del cls._shared

    def _mixed(
        self, harness: SchedulerHarness, count: int = 6, max_tokens: int = 9, **fields: Any
    ) -> None:
        """Run requests of mixed length together to their end."""
        for number in range(count):
            length = 1 + (5 * number) % 17
            ids = [self.prompt_ids[(number + i) % len(self.prompt_ids)] for i in range(length)]
            harness.add(ids, max_tokens, **fields)
        harness.drain()

    # ------------------------------------------------------------------ start
    def test_start_reports_groups_and_memory(self) -> None:
        """The order of calls at start works, and its reports suffice for planning."""
        worker = self.built()
        worker.load()
        groups = worker.kv_cache_groups()
        assert groups
        assert all(
            group.bytes_per_token >= 0 and (group.kind == "sliding") == bool(group.window)
            for group in groups
        )
        layers = [layer for group in groups for layer in group.layers]
        assert len(set(layers)) == len(layers), "a layer is in two groups"
        least = 1 if any(group.bytes_per_token for group in groups) else 0
        assert worker.available_memory().free_bytes >= least
        assert worker.steps_in_flight >= 1

    def test_examine_says_what_load_will_find(self) -> None:
        """Facts are plain values and valid for a worker loaded later, which is unaffected."""
        worker = self.built()
        facts = worker.examine()
        assert facts == worker.examine(), "two looks at one model differ"
        assert facts.architecture
        assert msgspec.json.decode(msgspec.json.encode(facts), type=WorkerFacts) == facts
        worker.load()
        if facts.groups:
            assert list(facts.groups) == list(worker.kv_cache_groups())

    def test_examine_is_enough(self) -> None:
        """A worker that was only examined is shut down like any other."""
        self.built().examine()
        self.teardown_method()

    def test_shutdown_after_a_start_that_went_nowhere(self) -> None:
        """`shutdown` is called after a failed start, too."""
        self.built()
        self.teardown_method()

    # ------------------------------------------------------------------ tokens
    def test_the_same_request_gets_the_same_tokens(self) -> None:
        """Greedy decoding is reproducible, on the same worker and on another."""
        self._mixed(self.run(), count=2)

    def test_a_batch_gives_what_each_request_gets_alone(self) -> None:
        """Prompts of mixed length together, decoding and prefilling in the same steps."""
        self._mixed(self.run())

    def test_chunks_give_what_whole_prompts_give(self) -> None:
        """Prompts cut into pieces of a few tokens."""
        self._mixed(self.run(dataclasses.replace(self.spec, max_num_batched_tokens=5)))

    def test_preempted_requests_come_back_as_they_were(self) -> None:
        """A small pool forces preemption and recomputation."""
        least = -(-self.spec.max_model_len // self.spec.block_size)
        spec = dataclasses.replace(self.spec, num_blocks=least)
        harness = self.run(spec)
        for number in range(4):
            harness.add(list(self.prompt_ids[: 2 + number]), 30)
        harness.drain()
        assert harness.step_checker.num_preemptions > 0

    def test_blocks_may_stand_anywhere(self) -> None:
        """The block table, not the order of blocks, locates K/V."""
        self._mixed(self.run(scheduler=ScatteringScheduler))

    def test_shared_prefixes_are_read_in_the_step_that_writes_them(self) -> None:
        """Requests of one step share blocks filled by the same step; later ones find them in the cache.

        Layers with a state continue from a snapshot, a step later. If the worker places K/V itself (kind "opaque"),
        nothing is shared.
        """
        harness = self.run(scheduler=CachingScheduler)
        prefix = [
            self.prompt_ids[i % len(self.prompt_ids)] for i in range(2 * self.spec.block_size)
        ]
        entries = [harness.add([*prefix, tail], 6) for tail in self.prompt_ids[:3]]
        harness.drain()
        entries.append(harness.add([*prefix, self.prompt_ids[4]], 6))
        harness.drain()
        is_opaque = any(group.kind == "opaque" for group in harness.worker.kv_cache_groups())
        assert any(entry.num_cached for entry in entries) != is_opaque

    @pytest.mark.parametrize("depth", [2, 3])
    def test_it_feeds_its_own_tokens_back(self, depth: int) -> None:
        """Several steps in flight: −1 as next token means the worker's own sample."""
        self._mixed(self.run(dataclasses.replace(self.spec, depth=depth)))

    @pytest.mark.parametrize("budget", [5, 32])
    def test_rounds_give_what_single_steps_give(self, budget: int) -> None:
        """With capability "rounds", rows may decode several tokens in a step; stop ids end them in its middle."""
        spec = dataclasses.replace(self.spec, round_tokens=8, max_num_batched_tokens=budget)
        harness = self.run(spec)
        self._mixed(harness)
        if "rounds" in harness.worker.capabilities:
            most = rows_end_in_rounds(harness, self.prompt_ids, self.model().vocab_size)
            assert most == min(8, budget), "a row gets as many tokens as a round may have"

    @requires("supports_min_tokens")
    def test_stop_ids_are_held_back_until_min_tokens(self) -> None:
        """Before min_tokens a stop id is not sampled at all."""
        prompt = list(self.prompt_ids[:4])
        harness = self.run()
        free = harness.add(prompt, 8)
        harness.drain()
        held = harness.add(prompt, 8, min_tokens=5, stop_token_ids=free.token_ids[:3])
        harness.drain()
        assert not set(held.token_ids[:4]) & set(free.token_ids[:3])

    def test_delivered_tokens_count_as_output(self) -> None:
        """A request that resumes after another engine produces the rest of the same tokens."""
        harness = self.run()
        prompt = list(self.prompt_ids[:5])
        for temperature, seed in ((0.0, None), (1.0, 11)):
            whole = harness.add(prompt, 9, temperature=temperature, seed=seed)
            harness.drain()
            for delivered in (1, 4):
                rest = harness.add(
                    prompt, 9, num_delivered=delivered, temperature=temperature, seed=seed
                )
                harness.drain()
                assert rest.token_ids == whole.token_ids[delivered:]

    def test_a_row_keeps_nothing_of_the_request_before_it(self) -> None:
        """One row, request after request: seeds, stop ids and limits are those of its current request."""
        prompt = list(self.prompt_ids[:4])
        parameters: list[dict[str, Any]] = [
            {"temperature": 1.0, "seed": 3},
            {},
            {"temperature": 1.0, "seed": 4},
            {"allowed_token_ids": self.prompt_ids[:2]},
            {"num_delivered": 2},
        ]
        for order in (parameters, parameters[::-1]):
            harness = self.run(dataclasses.replace(self.spec, max_num_seqs=1), is_fresh=True)
            for fields in order:
                harness.add(prompt, 6, **fields)
            harness.drain()

    @requires("supports_allowed_tokens")
    def test_a_row_that_has_no_token_to_sample_fails_alone(self) -> None:
        """`failed_row` names a row whose parameters leave no token; the other rows of the step are answered."""
        a_row_fails_alone(self.run(), self.prompt_ids)

    def test_a_step_is_left_as_it_was(self) -> None:
        """The scheduler may reuse the arrays of a step: a worker copies those that it changes."""
        harness = self.run(dataclasses.replace(self.spec, max_num_batched_tokens=6))
        harness.add(list(self.prompt_ids), 4)
        worker = harness.worker
        changed: list[int] = []

        def execute(output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
            before = encoded(output)
            answer = worker.execute_model(output)
            if encoded(output) != before:
                changed.append(output.step_id)
            return answer

        harness.worker = SimpleNamespace(execute_model=execute)
        harness.drain()
        assert not changed, f"execute_model changed the SchedulerOutput of steps {changed}"

    def test_seeded_samples_do_not_depend_on_the_batch(self) -> None:
        """Randomness is keyed by seed and output position, independent of neighbours and chunks."""
        self._mixed(
            self.run(dataclasses.replace(self.spec, max_num_batched_tokens=9)),
            temperature=1.0,
            seed=5,
        )

    # ------------------------------------------------------------------ results and calls
    def test_results_have_the_shapes_that_the_interface_names(self) -> None:
        """One token per sampling row, ids in the vocabulary, all i32 and in step order."""
        self._check_shapes({}, {})

    @requires("supports_logprobs")
    def test_logprobs_have_the_shapes_that_the_interface_names(self) -> None:
        """Where requested, of sampled tokens and of prompts."""
        self._check_shapes({"logprobs": 2}, {"prompt_logprobs": 1})

    def _check_shapes(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        harness = self.run(dataclasses.replace(self.spec, max_num_batched_tokens=6))
        harness.add(list(self.prompt_ids), 4, **first)
        harness.add(list(self.prompt_ids[:2]), 5, **second)
        while harness.scheduler.has_requests() and harness.launch():
            output, future = harness.in_flight[-1]
            check_shapes(output, future.result(), self.model().vocab_size)
            harness.deliver()
        harness.drain()

    def test_an_empty_step_is_answered(self) -> None:
        """A step without rows carries connector metadata and the rows to remove."""
        worker = self.started()
        answer = worker.execute_model(SchedulerOutput(step_id=0))
        result = answer if isinstance(answer, ModelRunnerOutput) else answer.result()
        assert (result.step_id, len(result.row), len(result.token_ids)) == (0, 0, 0)

    def test_grammars_are_compiled_before_their_requests_start(self) -> None:
        """With capability "grammar", `prepared` eventually names exactly the requested grammars."""
        worker = self.started()
        if "grammar" in worker.capabilities:
            grammars_are_compiled(worker)

    def test_calls_are_limited_to_the_allow_list(self) -> None:
        """`call` rejects every name outside `rpc_methods`, even an attribute of the class."""
        worker = self.started()
        for name in ("no_such_method", "shutdown", "__init__", "_private"):
            if name not in worker.rpc_methods:
                with pytest.raises(Unsupported, match=name):
                    worker.call(name)
        worker.check_health()
        assert all(
            isinstance(text, str) for pair in worker.resolved_plugins().items() for text in pair
        )
