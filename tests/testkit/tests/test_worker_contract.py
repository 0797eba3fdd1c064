"""The worker suite over the fake worker, and over workers with one defect each."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from tenonry.errors import PluginError
from tenonry.kv_cache import MemoryReport
from tenonry.step import NO_ROWS
from tenonry_testkit.fakes.tokens import RECURRENT
from tenonry_testkit.fakes.worker import FakeWorker
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.worker import WorkerContract


class TestFakeWorker(WorkerContract):
    worker = FakeWorker


class TestFakeWorkerByName(WorkerContract):
    worker = "tenonry_testkit.fakes.worker:FakeWorker"
    options: ClassVar = {"windows": (0, 8), "seed": 3}


class TestFakeWorkerWithStates(WorkerContract):
    worker = FakeWorker
    options: ClassVar = {"windows": (0, RECURRENT)}


class Lacking(WorkerContract):
    worker = FakeWorker
    supports_min_tokens = supports_logprobs = supports_allowed_tokens = False


@pytest.mark.parametrize(
    ("flag", "test"),
    [
        ("supports_min_tokens", "test_stop_ids_are_held_back_until_min_tokens"),
        ("supports_logprobs", "test_logprobs_have_the_shapes_that_the_interface_names"),
        ("supports_allowed_tokens", "test_a_row_that_has_no_token_to_sample_fails_alone"),
    ],
)
def test_a_skipped_test_states_its_flag(flag, test):
    with pytest.raises(pytest.skip.Exception, match=rf"^Lacking\.{flag} = False$"):
        getattr(Lacking(), test)()


class Counted(FakeWorker):
    """Counts the calls of all instances together."""

    loads: ClassVar[list[object]] = []
    caches: ClassVar[list[object]] = []

    def load(self):
        super().load()
        self.loads.append(self)

    def initialize_cache(self, kv_cache):
        super().initialize_cache(kv_cache)
        self.caches.append(self)


class Unchecked(FakeWorker):
    """As a real worker: wrong numbers are not noticed, they are computed with."""

    def initialize_cache(self, kv_cache):
        super().initialize_cache(kv_cache)
        self.store._check = lambda *args: None


class HasNoMemory(Unchecked):
    caught_by = "test_start_reports_groups_and_memory"

    def available_memory(self):
        return MemoryReport(0)


class ContiguousBlocks(Unchecked):
    caught_by = "test_blocks_may_stand_anywhere"

    def execute_model(self, output):
        for new in output.new:
            first = int(new.block_ids[0][0])
            new.block_ids = tuple(
                np.arange(first, first + len(ids), dtype=np.int32) % 40 for ids in new.block_ids
            )
        return super().execute_model(output)


class ForgetsItsSamples(Unchecked):
    caught_by = "test_it_feeds_its_own_tokens_back"

    def _remember(self, rows, tokens):
        super()._remember(rows, np.full_like(tokens, 7))


class CountsDeliveredAsPrompt(Unchecked):
    caught_by = "test_delivered_tokens_count_as_output"

    def execute_model(self, output):
        for new in output.new:
            new.num_output = 0
        return super().execute_model(output)


class IgnoresMinTokens(Unchecked):
    caught_by = "test_stop_ids_are_held_back_until_min_tokens"

    def execute_model(self, output):
        for new in output.new:
            new.stop_token_ids = ()
        return super().execute_model(output)


class SamplesByTheStep(Unchecked):
    caught_by = "test_seeded_samples_do_not_depend_on_the_batch"

    def _sample(self, inputs, context):
        return super()._sample(inputs, context + np.uint64(self.steps))


class CallsAnything(Unchecked):
    caught_by = "test_calls_are_limited_to_the_allow_list"

    def call(self, method, args=(), kwargs=None):
        return getattr(self, method, lambda *args: None)(*args) if method != "__init__" else None


class DropsFailedRows(Unchecked):
    caught_by = "test_a_row_that_has_no_token_to_sample_fails_alone"

    def execute_model(self, output):
        result = super().execute_model(output)
        result.failed_row = result.failed_code = np.zeros(0, np.int32)
        return result


class KeepsTheFirstParametersOfARow(Unchecked):
    caught_by = "test_a_row_keeps_nothing_of_the_request_before_it"

    def execute_model(self, output):
        for new in output.new:
            before = self._new_rows[new.row]
            if before is not None:
                new.sampling = before.sampling
        return super().execute_model(output)


class WritesIntoThePrompt(Unchecked):
    caught_by = "test_a_step_is_left_as_it_was"

    def execute_model(self, output):
        result = super().execute_model(output)
        for new in output.new:
            new.token_ids[-1] = 0
        return result


class AnswersChunksToo(Unchecked):
    caught_by = "test_results_have_the_shapes_that_the_interface_names"

    def execute_model(self, output):
        output.samples = np.ones_like(output.samples)
        return super().execute_model(output)


class AnswersWithLongIntegers(Unchecked):
    """As argmax returns them."""

    caught_by = "test_results_have_the_shapes_that_the_interface_names"

    def execute_model(self, output):
        result = super().execute_model(output)
        result.token_ids = result.token_ids.astype(np.int64)
        return result


class DecodesOneTokenOfARound(Unchecked):
    """Decodes one token although it declares several."""

    caught_by = "test_rounds_give_what_single_steps_give"

    def initialize_cache(self, kv_cache):
        super().initialize_cache(kv_cache)
        self.rounds.play = lambda output, first: first


class GoesOnAfterTheEnd(Unchecked):
    """Never stops a row, which no row's tokens show, but its neighbours' may."""

    caught_by = "test_rounds_give_what_single_steps_give"

    def initialize_cache(self, kv_cache):
        super().initialize_cache(kv_cache)
        self.rounds._has_ended = lambda row, token: False


class LosesARoundsLastToken(Unchecked):
    caught_by = "test_rounds_give_what_single_steps_give"

    def execute_model(self, output):
        result = super().execute_model(output)
        if len(result.token_ids) > len(result.row) > 0:
            result.token_ids = result.token_ids[:-1]
            result.offsets = np.minimum(result.offsets, len(result.token_ids))
        return result


class CompilesGrammars(Unchecked):
    """Declares grammars, and takes three steps for each."""

    capabilities = Unchecked.capabilities | {"grammar"}

    suite_options: ClassVar = {"grammar_asks": 3}


class NeverSaysThatAGrammarIsThere(CompilesGrammars):
    caught_by = "test_grammars_are_compiled_before_their_requests_start"

    def execute_model(self, output):
        result = super().execute_model(output)
        result.prepared = []
        return result


class SaysAgainThatAGrammarIsThere(CompilesGrammars):
    caught_by = "test_grammars_are_compiled_before_their_requests_start"
    before: ClassVar = [4]

    def execute_model(self, output):
        result = super().execute_model(output)
        result.prepared += self.before
        return result


class StartsWithoutItsSnapshot(FakeWorker):
    caught_by = "test_shared_prefixes_are_read_in_the_step_that_writes_them"
    suite_options: ClassVar = TestFakeWorkerWithStates.options

    def execute_model(self, output):
        for new in output.new:
            new.block_ids = (new.block_ids[0], NO_ROWS)
        return super().execute_model(output)


class TakesNoSnapshot(FakeWorker):
    caught_by = "test_shared_prefixes_are_read_in_the_step_that_writes_them"
    suite_options: ClassVar = TestFakeWorkerWithStates.options

    def initialize_cache(self, kv_cache):
        super().initialize_cache(kv_cache)
        self.states.save = lambda output, state: None


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr("tenonry_testkit.scenarios_workers.GRAMMARS_S", 0.3)


def test_a_worker_that_takes_its_time_for_grammars_is_right(monkeypatch):
    monkeypatch.setattr("tenonry_testkit.scenarios_workers.GRAMMARS_S", 20.0)
    options = CompilesGrammars.suite_options
    suite = type("Suite", (WorkerContract,), {"worker": CompilesGrammars, "options": options})
    assert failing_tests(suite, [NeverSaysThatAGrammarIsThere.caught_by]) == {}


@pytest.mark.parametrize("loads_once", [False, True])
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.slow
@pytest.mark.broken("worker")
def test_defect_is_found_by_the_test_that_names_it(broken, loads_once):
    options = getattr(broken, "suite_options", {})
    suite = type(
        "Suite", (WorkerContract,), {"worker": broken, "options": options, "loads_once": loads_once}
    )
    failure = failing_tests(suite, [broken.caught_by]).get(broken.caught_by)
    assert isinstance(failure, AssertionError | PluginError | pytest.fail.Exception), repr(failure)


def test_unchecked_worker_is_right():
    """The base of the defective workers passes all the tests that detect them."""
    suite = type("Suite", (WorkerContract,), {"worker": Unchecked})
    assert failing_tests(suite, [broken.caught_by for broken in BROKEN]) == {}


def test_tests_that_serve_share_a_worker_where_it_loads_once():
    """Another one answers for requests alone, and each test has a cache of its own."""
    suite = type("Suite", (WorkerContract,), {"worker": Counted, "loads_once": True})
    names = ["test_a_batch_gives_what_each_request_gets_alone", "test_blocks_may_stand_anywhere"]
    assert failing_tests(suite, names) == {}
    suite.teardown_class()
    serving, alone = Counted.loads
    assert Counted.caches == [serving, alone, serving]
