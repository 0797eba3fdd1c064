"""Runs the model step by step: state, inputs, attention plans, forward pass, sampling. Worker process."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry.step import BatchState, DoneFuture, RowFailure
from tenonry_torch_base.history import History
from tenonry_torch_base.profiling import scoped
from tenonry_torch_base.results import DeviceFuture, PromptPart, StepResult
from tenonry_torch_base.rounds import Rounds
from tenonry_torch_base.sampler.logprobs import prompt_logprobs_of
from tenonry_torch_base.sampler.processors import ProcessorContext, SampleStep
from tenonry_torch_base.sampler.sampler import Sampler
from tenonry_worker_torch.batch import attention_batch, dummy_batch, pruned_batch, tokens_as_rows
from tenonry_worker_torch.drafting.drafts import Drafts
from tenonry_worker_torch.drafting.pace import Pace
from tenonry_worker_torch.drafting.rounds import DraftedRounds
from tenonry_worker_torch.drafting.verification import Verification, Verifier
from tenonry_worker_torch.forward import ForwardPlans
from tenonry_worker_torch.images.encoder import Blind
from tenonry_worker_torch.images.rows import ImageRows, image_rows
from tenonry_worker_torch.kv_binding import bind_kv_cache
from tenonry_worker_torch.kv_groups import GroupLayout
from tenonry_worker_torch.parallel.tokens import shared
from tenonry_worker_torch.runner.halving import PartLogits, SmallerParts
from tenonry_worker_torch.runner.kernel_passes import RoundPasses
from tenonry_worker_torch.runner.row_lengths import RowLengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tenonry.step import ModelRunnerOutput, NewRow, SchedulerOutput, StepFuture, StepInputs
    from tenonry_drafters.base import Drafter
    from tenonry_torch_base.sampler.processors import LogitsProcessor
    from tenonry_torch_base.sampler.sampler import Sampled
    from tenonry_worker_torch.attention.base import LayerCache
    from tenonry_worker_torch.loaded_model import LoadedModel

DUMMY_TOKENS = 2  # a prompt of two, since a single token would look like a decoding row


class ModelRunner:
    """The columns of all running rows, and one step after another over them."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        max_num_seqs: int,
        max_model_len: int,
        num_blocks: int,
        block_size: int,
        groups: GroupLayout = GroupLayout(),  # noqa: B008 - frozen
        seed: int = 0,
        processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        self.model = model
        self.images = image_rows(model.images, max_num_seqs)
        self.device = model.device
        self.buffers = model.buffers
        self.adapters = model.adapters
        if self.adapters is not None:
            self.adapters.allocate(max_num_seqs)
        self.state = BatchState(max_num_seqs, max_model_len, block_size, groups.num_groups)
        rule = model.lengths
        self.row_lengths = None if rule is None else RowLengths(rule, self.state)
        self.history = History(self.state, self.device)
        self.rounds = Rounds(self.state, self._step, RoundPasses(self))
        self._parts = SmallerParts(self.state, self._pass, self._begin_part)
        self._verifier: Verifier | None = None
        # Around the model alone: what else a step starts, as threads that compile grammars, may go anywhere.
        self.places: AbstractContextManager[None] = nullcontext()
        self.generation = np.zeros(max_num_seqs, np.int64)
        self.kv_caches: list[LayerCache] = []
        self._state_group = groups.num_groups - 1
        self._num_state_slots = groups.num_state_slots
        self._dummy_block = num_blocks
        self.allocate()
        context = ProcessorContext(
            max_num_seqs, model.vocab_size, self.device, self.history.tokens, self.state.token_ids
        )
        self.sampler = Sampler(context, seed, processors)

    def draft(self, drafter: Drafter | None, max_drafts: int) -> None:
        """Verify a drafter's tokens in multi-token steps; None on a rank that receives drafts of another."""
        group = self.model.parallel.tensor

        def share(message: NDArray[np.int64]) -> NDArray[np.int64]:
            shared_ids: NDArray[np.int64] = group.broadcast(torch.from_numpy(message)).numpy()
            return shared_ids

        drafts = Drafts(
            drafter,
            Pace(len(self.generation), max_drafts),
            self.state,
            self.model.vocab_size,
            self.sampler.fitting,
            share if group.size > 1 else None,
        )
        several = RoundPasses(self)
        self.rounds = DraftedRounds(self.state, self._step, self.verify, drafts, several)
        self._verifier = Verifier(self.sampler, self.state, self.rounds.ends)

    def allocate(self) -> None:
        """Take the memory of the KV cache, and of states by row."""
        # One block more than there is to give away: for `dummy`.
        caches = self.model.backend.allocate(self._dummy_block + 1, self.state.block_size)
        bind_kv_cache(caches, self.model.layers, self.kv_caches)
        if self.model.states is not None:
            self.model.states.allocate(len(self.generation), self._num_state_slots)

    def release(self) -> None:
        """Release that memory; no step until `allocate`."""
        self.kv_caches.clear()
        self.model.step.plan = None  # the last one may hold the cache of a layer
        for layer in self.model.layers.values():
            layer.kv_cache = []
        self.model.backend.allocate(1, self.state.block_size)  # it holds what it allocated last

    def forget_model(self) -> None:
        """Drop the model; `adopt` sets another."""
        self.model = None  # type: ignore[assignment] - no step runs in the meantime
        self.images = None

    def adopt(self, model: LoadedModel) -> None:
        """Continue with a model of the same shapes; `allocate` follows."""
        self.model = model
        self.buffers = model.buffers
        self.images = image_rows(model.images, len(self.generation))

    @scoped("tenonry: step")
    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        """One step. On the CPU the result is returned; on another device, a future of it."""
        if output.round_tokens > 1:
            return self.rounds.run(output)
        return self._step(output)

    def _step(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        prepared = self.sampler.compile(output)
        states = self.model.states
        if states is None:
            result = self._run(output)
        else:
            states.restore(output, self._state_group)
            result = self._run(output)
            states.save(output, self._state_group)
        result.prepared = prepared
        if self.device.type == "cuda":
            return DeviceFuture(result)
        return result.output()

    @scoped("tenonry: verify")
    @torch.inference_mode()
    def verify(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Run a step in which drafts follow each row's pending token: sampled tokens up to the first rejected draft."""
        if self._verifier is None:
            raise RuntimeError("there is no drafter, and nothing to verify")
        prepared = self.sampler.compile(output)
        inputs = self._apply(output)
        self.buffers.begin_step()
        token_ids = self.history.inputs(output, inputs, self.buffers)
        verifier = self._verifier
        group = self.model.parallel.tensor
        verifier.prepare(inputs)
        logits = self._forward(inputs, token_ids, [], verifies=True)
        if group.rank == 0:
            step = verifier.sample(logits, inputs)
        else:
            step = Verification(inputs, self.state)
        group.broadcast(torch.from_numpy(step.token_ids))
        verifier.settle(step)
        if self.adapters is not None:
            failure = torch.from_numpy(step.failure)
            self.adapters.fail_lost(step.row, failure)
        answer = verifier.answer(output.step_id, step)
        answer.prepared = prepared
        return answer

    def _apply(self, output: SchedulerOutput) -> StepInputs:
        """Rows leave and enter; the columns are those of the end of the step."""
        if len(output.gone):
            self._leave(output.gone)
        inputs = self.state.apply(output)
        for new in output.new:
            self.generation[new.row] += 1
            self._enter_length(new)
            self.sampler.enter(new)
            self.rounds.enter(new)
            if self.images is None and new.media is not None:
                self.images = ImageRows(Blind(), len(self.generation))
            if self.images is not None:
                self.images.enter(new)
        if self.adapters is not None:
            self.adapters.enter(output)
        return inputs

    @torch.inference_mode()
    def _run(self, output: SchedulerOutput) -> StepResult:
        inputs = self._apply(output)
        if not len(output.row):
            return StepResult(output.step_id, output.row, None, [])
        self.buffers.begin_step()
        parallel = self.model.parallel
        token_ids = self.history.inputs(output, inputs, self.buffers)
        given = parallel.link.inputs(token_ids)
        if self.sampler.prepares and inputs.samples.any():
            self.sampler.prepare(self._sample_step(inputs))
        logits = self._logits(inputs, given)
        sampled = None
        if inputs.samples.any():
            sampled = self._sample(inputs, logits.samples)
            if self.adapters is not None:
                self.adapters.fail_lost(inputs.row[inputs.samples], sampled.failure)
        prompts: list[PromptPart] = []
        if (
            len(logits.prompts) and parallel.tensor.rank == 0
        ):  # only the first rank's result is read
            prompts = self._prompt_logprobs(inputs, logits.prompts)
        return StepResult(output.step_id, inputs.row[inputs.samples], sampled, prompts)

    def _leave(self, rows: NDArray[np.int32]) -> None:
        self.model.backend.release(rows)
        for row in rows.tolist():
            self.sampler.leave(row)
            self.rounds.leave(row)
            if self.images is not None:
                self.images.leave(row)

    # ------------------------------------------------------------------ the forward pass

    def _enter_length(self, new: NewRow) -> None:
        if self.row_lengths is not None:
            self.row_lengths.enter(new)

    def _lengths(self, inputs: StepInputs) -> torch.Tensor | None:
        """As `ForwardPlans.lengths`."""
        if self.row_lengths is None:
            return None
        return self.buffers.put("lengths", self.row_lengths.of_tokens(inputs))

    def _logits(self, inputs: StepInputs, given: torch.Tensor) -> PartLogits:
        """Logits, in several passes if memory is short, K/V are the only state of a pass, and the rank is alone."""
        if self.model.states is not None or not self.model.parallel.is_alone:
            return self._pass(inputs, given)
        return self._parts.run(inputs, given, cuts_rows=self.images is None)

    def _pass(self, inputs: StepInputs, given: torch.Tensor) -> PartLogits:
        logits = self._forward(inputs, given, self._prompt_tokens(inputs))
        num_samples = int(inputs.samples.sum())
        return PartLogits(logits[:num_samples], logits[num_samples:])

    def _begin_part(self, rows: NDArray[np.int32]) -> None:
        """Start a repeated computation of these rows: the backend's state of them besides their blocks may be wrong,
        and is not used for another generation.
        """
        self.generation[rows] += 1
        self.buffers.begin_step()

    @scoped("tenonry: forward")
    def _forward(
        self,
        inputs: StepInputs,
        given: torch.Tensor,
        prompt_tokens: list[NDArray[np.int64]],
        *,
        verifies: bool = False,
    ) -> torch.Tensor:
        """Logits of the sampling tokens, followed by those of the requested prompt tokens.

        If drafts are verified: of all tokens.
        """
        backend = self.model.backend
        forward = self.model.forward
        ends = inputs.query_start_loc[1:][inputs.samples]
        last = ends.astype(np.int64) - 1
        wanted = np.concatenate([last, *prompt_tokens]) if prompt_tokens else last
        keeps_all = not prompt_tokens and len(last) == len(inputs.token_ids)
        keep = None if keeps_all or verifies else self.buffers.put("keep", wanted)
        batch = attention_batch(
            inputs, self.state, self.generation, self.buffers, backend.num_groups
        )
        if verifies and backend.splits_rows:
            batch = tokens_as_rows(batch)
        if self.images is not None:
            batch.last_seen = self.images.last_seen(inputs)
        plans = ForwardPlans(backend.plan(batch), lengths=self._lengths(inputs))
        if forward.can_prune and keep is not None and not prompt_tokens:
            pruned = pruned_batch(batch, plans.full, inputs.samples, self.buffers)
            plans.last = backend.plan(pruned)
        if self.adapters is not None:
            self.adapters.begin_step(inputs, self.buffers, is_pruned=plans.last is not None)
        if self.images is None:
            positions = inputs.positions.astype(np.int64)
        else:
            given, positions = self.images.inputs(inputs, given)
        placed = self.buffers.put("positions", positions)
        with self.places:
            return forward(given, placed, keep, plans)

    @scoped("tenonry: sample")
    def _sample(self, inputs: StepInputs, logits: torch.Tensor) -> Sampled:
        step = self._sample_step(inputs)
        group = self.model.parallel.tensor
        sampled: Sampled | None = None
        if group.rank == 0:
            sampled = self.sampler.sample(logits, step)
            if self.images is not None and self.images.failed.any():
                failed = self.buffers.put("failed", self.images.failed[step.row])
                sampled.failure.masked_fill_(failed, RowFailure.MEDIA)
        if group.size > 1:
            sampled = shared(sampled, len(step.row), group, self.device)
        self.history.record(step.row, step.length, sampled.token_ids, self.buffers)
        return sampled

    def _sample_step(self, inputs: StepInputs) -> SampleStep:
        """The rows that sample."""
        rows = inputs.row[inputs.samples]
        length = inputs.seq_lens[inputs.samples]
        return SampleStep(rows, self.state.num_output[rows] - 1, length)

    # ------------------------------------------------------------------ prompt log-probabilities

    def _prompt_tokens(self, inputs: StepInputs) -> list[NDArray[np.int64]]:
        """Flattened indices of tokens whose successor is a prompt token, for each row that requests them."""
        found: list[NDArray[np.int64]] = []
        if not self.sampler.columns.needs_prompt_logprobs(inputs.row):
            return found
        for i in self._asking(inputs):
            first = int(inputs.query_start_loc[i])
            begin = int(inputs.start[i])
            last_prompt = int(self.state.num_prompt[inputs.row[i]]) - 1
            count = min(int(inputs.num_tokens[i]), last_prompt - begin)
            end = first + max(count, 0)
            found.append(np.arange(first, end, dtype=np.int64))
        return found

    def _prompt_logprobs(self, inputs: StepInputs, logits: torch.Tensor) -> list[PromptPart]:
        """`logits` of the prompt tokens, rows one after another."""
        parts: list[PromptPart] = []
        begin = 0
        for i, tokens in zip(self._asking(inputs), self._prompt_tokens(inputs), strict=True):
            if not len(tokens):
                continue
            row = int(inputs.row[i])
            start = int(inputs.start[i]) + 1
            end = begin + len(tokens)
            chosen = self.history.tokens[row, start : start + len(tokens)].long()
            count = int(self.sampler.columns.prompt_logprobs[row])
            logprobs = prompt_logprobs_of(logits[begin:end], chosen, count)
            parts.append(PromptPart(row, start, logprobs))
            begin = end
        return parts

    def _asking(self, inputs: StepInputs) -> NDArray[np.int64]:
        """Indices of the rows that request log-probabilities of their prompt."""
        return np.flatnonzero(self.sampler.columns.prompt_logprobs[inputs.row] >= 0)

    # ------------------------------------------------------------------ without a request

    @torch.inference_mode()
    def dummy(self) -> None:
        """A forward pass over tokens of no request, for ranks that wait for this one. No request's K/V are touched."""
        self.buffers.begin_step()
        if self.adapters is not None:
            self.adapters.begin_dummy()
        count = DUMMY_TOKENS
        link = self.model.parallel.link
        token_ids = torch.zeros(count, dtype=torch.long, device=self.device)
        given = link.inputs(token_ids)
        positions = self.buffers.put("positions", np.arange(count, dtype=np.int64))
        keep = self.buffers.put("keep", np.array([count - 1]))
        batch = dummy_batch(
            self._dummy_block,
            self.state.block_size,
            count,
            self.buffers,
            self.model.backend.num_groups,
        )
        plans = ForwardPlans(self.model.backend.plan(batch))
        made = self.model.forward(given, positions, keep, plans)
        if not link.is_last:
            link.send(made)

    def answer(self, output: SchedulerOutput) -> StepFuture:
        """As `execute`, always as a future."""
        result = self.execute(output)
        return result if isinstance(result, DeviceFuture) else DoneFuture(result)  # type: ignore[arg-type]
