"""A worker with predictable tokens, and a KV cache that detects every wrong block. Worker process; no torch.

It applies steps with `BatchState` like every real worker, writes one number per slot, and reads them back through
the block table, so a scheduler that confuses rows, blocks, chunks or results is detected in that very step.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenonry.errors import ModelError
from tenonry.info import PluginRecord, WorkerFacts
from tenonry.interfaces.kv_connector import KVConnector, KVConnectorContext, KVConnectorRole
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.plugin.checks import load_options
from tenonry.plugin.plan import load_class
from tenonry.step import I32, ModelRunnerOutput, NewRow, RowFailure, SchedulerOutput
from tenonry_scheduling.columns import BatchState, StepInputs
from tenonry_scheduling.settings import WorkerDrafter
from tenonry_testkit.fakes.kv_store import LOST, NOBODY, POISON, FakeKVError, FakeKVStore
from tenonry_testkit.fakes.logprobs import prompt_logprobs, token_logprobs
from tenonry_testkit.fakes.rounds import FakeRounds
from tenonry_testkit.fakes.state_store import FakeStateStore
from tenonry_testkit.fakes.step_inputs import check_inputs
from tenonry_testkit.fakes.tokens import TokenModel, text_salt
from tenonry_testkit.fakes.worker_options import FakeWorkerOptions, fake_group

__all__ = ["FakeKVError", "FakeWorker", "FakeWorkerOptions"]


class FakeWorker(Worker):
    """A model without weights; see `TokenModel`.

    `fail_handles`: handle → RowFailure code of rows to fail; `fail_steps`: step id → exception to raise; `on_step`:
    called with each step before it runs. `steps` and `dummy_steps` count what was executed. `contaminated`: handles of
    rows that failed because they read values written by a failed row.
    """

    Options = FakeWorkerOptions
    capabilities = frozenset({"profile", "dummy_batch", "kv_connector", "rounds"})
    rpc_methods = frozenset({"profile", "echo", "execute_dummy_batch", "count_steps"})

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        given = context.options
        self.options = given if isinstance(given, FakeWorkerOptions) else FakeWorkerOptions()
        vocab_size = self.options.vocab_size or context.model.vocab_size
        self.model = TokenModel(
            vocab_size,
            self.options.seed,
            self.options.windows,
            holds_back_stop_ids=self.options.holds_back_stop_ids,
        )
        self.fail_handles: dict[int, int] = {}
        self.fail_steps: dict[int, Exception] = {}
        self.on_step: Callable[[SchedulerOutput], None] | None = None
        self.steps = self.dummy_steps = 0
        self.contaminated: set[int] = set()
        self.profiling = False
        self.is_shut_down = False
        size = context.config.max_num_seqs
        self._new_rows: list[NewRow | None] = [None] * size
        self._salt = np.zeros(size, np.uint64)
        self._failure = np.zeros(size, np.int32)  # RowFailure code of a row that cannot continue
        self._rubbish = np.zeros(size, np.bool_)  # rows that run on missing contents
        self._entered = np.zeros(size, np.int64)
        self._asks: Counter[int] = Counter()  # handle → number of requests for its grammar
        self._known_failures: dict[int, int] = {}  # handle → steps when its failure was reported
        self._connector: KVConnector | None = None

    def execute_dummy_batch(self) -> None:
        self.dummy_steps += 1

    def count_steps(self) -> list[int]:
        """[steps, dummy steps] so far."""
        return [self.steps, self.dummy_steps]

    # ------------------------------------------------------------------ start-up
    @property
    def steps_in_flight(self) -> int:
        return self.options.steps_in_flight

    def examine(self) -> WorkerFacts:
        self.load()
        architecture = self.context.model.architecture
        return WorkerFacts(
            architecture=architecture, worker="fake", groups=tuple(self.kv_cache_groups())
        )

    def load(self) -> None:
        if self.options.fail_load is not None:
            raise ModelError(self.options.fail_load)

    def kv_cache_groups(self) -> Sequence[KVCacheGroup]:
        options = self.options
        return [
            fake_group(index, window, options.block_sizes)
            for index, window in enumerate(options.windows)
        ]

    def available_memory(self) -> MemoryReport:
        return MemoryReport(self.options.free_bytes)

    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        config = self.context.config
        self.state = BatchState(
            config.max_num_seqs,
            self.context.max_model_len,
            kv_cache.block_size,
            len(kv_cache.groups),
        )
        self.store = FakeKVStore(kv_cache)
        self.states = FakeStateStore(kv_cache, config.max_num_seqs)
        self.rounds = FakeRounds(
            self.state,
            self._new_rows,
            self._compute,
            self.options.short_rounds,
            drafts=config.section(WorkerDrafter).drafter is not None,
        )
        if self.context.kv_connector is not None:
            self._connector = self._build_connector(self.context.kv_connector, kv_cache)
            self._connector.bind(self.store)

    def _build_connector(self, chosen: Any, kv_cache: KVCacheConfig) -> KVConnector:
        """Build the worker half; `chosen`: the plan's entry, or, in tests of one process, an existing connector."""
        if isinstance(chosen, KVConnector):
            return chosen
        if not isinstance(chosen, PluginRecord):
            raise TypeError(
                f"kv_connector must be a PluginRecord or a KVConnector, not {type(chosen).__name__}"
            )
        cls: Any = load_class(chosen)
        context = KVConnectorContext(
            self.context.config,
            self.context.model,
            KVConnectorRole.WORKER,
            engine_id=self.context.engine_id,
            kv_cache=kv_cache,
            options=load_options(chosen, cls),
            rank=self.context.rank,
        )
        connector: KVConnector = cls(context)
        return connector

    # ------------------------------------------------------------------ the step
    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._misbehave(output)
        done, failed, spoilt = self._load(output.connector_metadata)
        self._check_next_tokens(output)
        for new in output.new:
            self._new_rows[new.row] = new
            self._salt[new.row] = text_salt(new.adapter)
            self._failure[new.row] = 0
            self._rubbish[new.row] = False
            self._entered[new.row] = self.steps
            self.states.enter(new)
        inputs = self.state.apply(output)
        handles = self.state.handle[inputs.row]
        self._rubbish[inputs.row] |= np.isin(handles, np.array(spoilt, np.uint64))
        result = ModelRunnerOutput(step_id=output.step_id)
        if len(output.row):
            result = self._compute(output, inputs)
            self.states.save(output, self.state)
        if output.round_tokens > 1:
            result = self.rounds.play(output, result)
        if self._connector is not None:
            self._connector.save(output.connector_metadata)
        result.transfers_done = done
        result.transfers_failed = failed
        result.prepared = [handle for handle in output.prepare if self._has_grammar(handle)]
        self.steps += 1
        return result

    def _has_grammar(self, handle: int) -> bool:
        """Return True if the request's grammar was requested often enough."""
        self._asks[handle] += 1
        return self._asks[handle] >= self.options.grammar_asks

    def _load(self, metadata: Any) -> tuple[list[int], list[int], list[int]]:
        """Load blocks by the connector; returns handles of transfers (done, failed), and those with spoilt rows.

        A row that runs despite a failed load computes garbage from now on, like a real one. Rows wait for loads of
        asynchronous connectors: one that fails after its row has started anew, in other blocks, spoils nothing.
        """
        if self._connector is None:
            return [], [], []
        self._connector.load(metadata)
        done, failed = map(list, self._connector.poll())
        waits = getattr(getattr(self._connector, "options", None), "asynchronous", False)
        return done, failed, [] if waits else failed

    def _compute(self, output: SchedulerOutput, inputs: StepInputs) -> ModelRunnerOutput:
        check_inputs(self.state, output, inputs)
        longest = int(inputs.seq_lens.max())
        token_ids = self.state.token_ids[inputs.row, :longest]
        self._mark_failed(inputs)
        self._check_known(inputs, token_ids)
        kv = self.model.kv(token_ids, self._salt[inputs.row])
        context = self._attend(inputs, kv)
        rows, tokens = self._sample(inputs, context)
        self._remember(rows, tokens)
        failed_row = inputs.row[self._failure[inputs.row] > 0]
        bad = self._bad(inputs) > 0
        return ModelRunnerOutput(
            step_id=output.step_id,
            row=rows,
            offsets=np.arange(len(rows) + 1, dtype=np.int32),
            token_ids=tokens,
            logprobs=token_logprobs(rows, tokens, self._new_rows, self.model.vocab_size),
            prompt_logprobs=prompt_logprobs(
                self.state, inputs, self._new_rows, self.model.vocab_size, bad
            ),
            failed_row=failed_row,
            failed_code=self._failure[failed_row],
        )

    def _bad(self, inputs: StepInputs) -> NDArray[np.uint64]:
        """Value written by each row instead of K/V, or 0."""
        is_lost = self._rubbish[inputs.row]
        has_failed = self._failure[inputs.row] > 0
        lost = np.where(is_lost, LOST, np.uint64(0))
        return np.where(has_failed, POISON, lost)

    def _attend(self, inputs: StepInputs, kv: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Write and read the cache, until no row reads bad K/V that was not known to be bad.

        A row that reads a failed row's poison fails as well, as with NaN. That is no error while the scheduler cannot
        know of the failure; later it must not reuse such blocks. A row that reads contents that never arrived
        continues, and computes garbage.
        """
        while True:
            reading = self.store.step(self.state, inputs, kv, self._bad(inputs))
            self.states.read(self.state, inputs, kv, self._bad(inputs), reading)
            poisoned = np.flatnonzero(reading.poisoned_by != NOBODY).tolist()
            for i in poisoned:
                row = int(inputs.row[i])
                culprit = int(reading.poisoned_by[i])
                self._poison(row, culprit)
            self._rubbish[inputs.row[reading.lost]] = True
            if not poisoned and not reading.lost.any():
                return reading.context + self.states.advance(
                    self.state, inputs, kv, self._bad(inputs)
                )

    def _poison(self, row: int, culprit: int) -> None:
        handle = int(self.state.handle[row])
        known_since = self._known_failures.get(culprit)
        if known_since is not None and self._entered[row] >= known_since:
            raise FakeKVError(
                f"row {row} (handle {handle}) got a block from the cache that handle {culprit} filled, though that "
                "request is known to have failed"
            )
        self._failure[row] = RowFailure.NUMERICAL
        self.contaminated.add(handle)

    def failure_was_reported(self, handle: int) -> None:
        """Record that the scheduler was informed of this request's failure: other requests must not receive its blocks
        any more.
        """
        self._known_failures.setdefault(handle, self.steps)

    def _sample(self, inputs: StepInputs, context: NDArray[np.uint64]) -> tuple[I32, I32]:
        rows = []
        tokens = []
        is_sound = self._failure[inputs.row] == 0
        for i in np.flatnonzero(inputs.samples & is_sound).tolist():
            row = int(inputs.row[i])
            new = self._new_rows[row]
            if new is None:
                raise FakeKVError(f"row {row} is scheduled, but was never sent")
            index = int(self.state.num_output[row]) - 1
            picked = self.model.pick(int(context[i]), index, new.sampling.seed)
            token = self.model.allowed(picked, new.sampling, new.stop_token_ids, index)
            if token is None:
                self._failure[row] = RowFailure.SAMPLING
                continue
            rows.append(row)
            tokens.append(token)
        return np.array(rows, np.int32), np.array(tokens, np.int32)

    def _remember(self, rows: I32, tokens: I32) -> None:
        """Without feedback the worker forgets its samples: the first stage of a pipeline never receives them."""
        if not len(rows):
            return
        if not self.options.feeds_back:
            tokens = np.full(len(rows), -1, np.int32)
        self.state.record_sampled(rows, tokens)

    # ------------------------------------------------------------------ checks
    def _check_next_tokens(self, output: SchedulerOutput) -> None:
        """Check that a sent token equals the worker's own, if it has one."""
        entered = {new.row for new in output.new}
        for row, token in zip(output.row.tolist(), output.next_token.tolist(), strict=True):
            if row in entered or self._failure[row] or token < 0:
                continue
            position = self.state.num_computed[row]
            known = int(self.state.token_ids[row, position])
            if known not in {-1, token}:
                raise FakeKVError(
                    f"row {row}: next_token is {token}, but the token at that position is {known}"
                )

    def _check_known(self, inputs: StepInputs, token_ids: I32) -> None:
        positions = np.arange(token_ids.shape[1])
        inside = positions < inputs.seq_lens[:, None]
        is_good = self._bad(inputs) == 0
        unknown = (token_ids < 0) & inside & is_good[:, None]
        if not unknown.any():
            return
        i, position = (int(axis[0]) for axis in np.nonzero(unknown))
        raise FakeKVError(
            f"row {inputs.row[i]} computes position {position}, whose token neither the scheduler sent nor the worker "
            "sampled"
        )

    # ------------------------------------------------------------------ faults on order
    def _misbehave(self, output: SchedulerOutput) -> None:
        if self.on_step is not None:
            self.on_step(output)
        if self.options.delay_s:
            time.sleep(self.options.delay_s)
        if output.step_id in self.fail_steps:
            raise self.fail_steps.pop(output.step_id)

    def _mark_failed(self, inputs: StepInputs) -> None:
        options = self.options
        for row in inputs.row.tolist():
            handle = int(self.state.handle[row])
            code = self.fail_handles.get(handle)
            if code is not None:
                self._failure[row] = code
        if options.fail_row_token is not None:
            is_named = inputs.token_ids == options.fail_row_token
            rows = inputs.token_row[is_named]
            self._failure[rows] = RowFailure.NUMERICAL
        options.misbehave(inputs.token_ids)

    # ------------------------------------------------------------------ calls
    def profile(self, is_start: bool = True) -> bool:
        """Record the call without measuring anything."""
        self.profiling = is_start
        return is_start

    def echo(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the arguments after the rank, to identify the ranks that answer; keyword arguments follow as a
        dictionary.
        """
        named = [kwargs] if kwargs else []
        return [self.context.rank, *args, *named]

    def resolved_plugins(self) -> dict[str, str]:
        return {"fake": "tokens"}

    def shutdown(self) -> None:
        self.is_shut_down = True
        if self._connector is not None:
            self._connector.shutdown()
