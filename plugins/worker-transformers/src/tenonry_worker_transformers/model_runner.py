"""Runs the model step by step, each request through its own cache object. Worker process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tenonry.step import DoneFuture, RowFailure
from tenonry_scheduling.columns import BatchState
from tenonry_torch_base.history import History
from tenonry_torch_base.profiling import scoped
from tenonry_torch_base.results import DeviceFuture, PromptPart, StepResult
from tenonry_torch_base.sampler.logprobs import concatenated, prompt_logprobs_of
from tenonry_torch_base.sampler.processors import ProcessorContext, SampleStep
from tenonry_torch_base.sampler.sampler import Sampler
from tenonry_worker_transformers.rules import GenerationRules
from tenonry_worker_transformers.sequences import Sequences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry.kv_cache import KVCacheConfig
    from tenonry.step import ModelRunnerOutput, SchedulerOutput, StepFuture
    from tenonry_scheduling.columns import StepInputs
    from tenonry_torch_base.sampler.processors import LogitsProcessor
    from tenonry_torch_base.sampler.sampler import Sampled
    from tenonry_worker_transformers.loaded_model import LoadedModel

PROMPT_LOGITS = 1 << 26  # elements at a time, for a prompt's log-probabilities


class ModelRunner:
    """The columns of all running rows, and one step after another over them."""

    def __init__(
        self,
        model: LoadedModel,
        kv_cache: KVCacheConfig,
        *,
        max_num_seqs: int,
        seed: int = 0,
        processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        self.device = model.device
        self.buffers = model.buffers
        self.state = BatchState(max_num_seqs, kv_cache.max_model_len, kv_cache.block_size)
        self.history = History(self.state, self.device)
        self.sequences = Sequences(
            model.calls,
            chunks=model.checked.chunks,
            batching=model.checked.batching,
            max_model_len=kv_cache.max_model_len,
        )
        self._has_prompt_logits = model.checked.prompt_logits
        self._prompt_piece = max(1, PROMPT_LOGITS // model.vocab_size)
        context = ProcessorContext(
            max_num_seqs, model.vocab_size, self.device, self.history.tokens, self.state.token_ids
        )
        rules: Any = partial(
            GenerationRules, sequences=self.sequences, is_needed=model.checked.has_rules
        )
        self.sampler = Sampler(context, seed, [rules, *processors])

    @scoped("tenonry: step")
    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        """One step. On the CPU the result is returned; on another device, a future of it."""
        prepared = self.sampler.compile(output)
        result = self._run(output)
        result.prepared = prepared
        if self.device.type == "cuda":
            return DeviceFuture(result, self.device)
        return result.output()

    def answer(self, output: SchedulerOutput) -> StepFuture:
        """As `execute`, always as a future."""
        result = self.execute(output)
        return result if isinstance(result, DeviceFuture) else DoneFuture(result)  # type: ignore[arg-type]

    @torch.inference_mode()
    def _run(self, output: SchedulerOutput) -> StepResult:
        for row in output.gone.tolist():
            self.sequences.leave(row)
            self.sampler.leave(row)
        inputs = self.state.apply(output)
        for new in output.new:
            self.sequences.enter(new)
            self.sampler.enter(new)
        if not len(output.row):
            return StepResult(output.step_id, output.row, None, [])
        self.buffers.begin_step()
        token_ids = self.history.inputs(output, inputs, self.buffers)
        prompts: list[PromptPart] = []
        if self.sampler.prepares and inputs.samples.any():
            self.sampler.prepare(self._sample_step(inputs))
        logits = self._forward(inputs, token_ids, prompts)
        sampled = self._sample(inputs, logits) if logits is not None else None
        return StepResult(output.step_id, inputs.row[inputs.samples], sampled, prompts)

    @scoped("tenonry: forward")
    def _forward(
        self, inputs: StepInputs, token_ids: torch.Tensor, prompts: list[PromptPart]
    ) -> torch.Tensor | None:
        """Logits [N, V] of the sampling rows, in their order; `prompts` collects the requested parts of prompts."""
        rows = inputs.row.tolist()
        ends = inputs.seq_lens.tolist()
        decoding = [
            place
            for place, (row, end) in enumerate(zip(rows, ends, strict=True))
            if inputs.samples[place] and self.sequences.is_decoding(row, end)
        ]
        found: dict[int, torch.Tensor] = {}
        for place in sorted(set(range(len(rows))) - set(decoding)):
            last = self._prompt(inputs, place, prompts)
            if inputs.samples[place]:
                found[place] = last
        if not decoding:
            return torch.stack([found[place] for place in sorted(found)]) if found else None
        where = np.asarray(inputs.query_start_loc)[decoding].astype(np.int64)
        ids = token_ids[self.buffers.put("decoding", where)]
        logits = self.sequences.decode([rows[place] for place in decoding], ids)
        if not found:
            return logits
        found |= dict(zip(decoding, logits, strict=True))
        return torch.stack([found[place] for place in sorted(found)])

    def _prompt(self, inputs: StepInputs, place: int, prompts: list[PromptPart]) -> Any:
        """The last position's logits [V] of one row's chunk, or None while its prompt is collected."""
        row = int(inputs.row[place])
        begin = self.sequences.num_fed(row)
        end = int(inputs.seq_lens[place])
        wanted = int(self.sampler.columns.prompt_logprobs[row])
        asks = wanted >= 0 and self._has_prompt_logits
        length = int(self.state.num_prompt[row])
        found = self.sequences.prompt(
            row,
            self.history.tokens[row : row + 1, : max(end, length)].long(),
            end,
            is_last=bool(inputs.samples[place]),
            all_logits=asks,
            most=self._prompt_piece if asks else end,
        )
        parts = []
        last = None
        position = begin
        for logits in found:
            count = min(len(logits), length - 1 - position)
            if asks and count > 0:
                chosen = self.history.tokens[row, position + 1 : position + 1 + count].long()
                parts.append(prompt_logprobs_of(logits[:count], chosen, wanted))
            position += len(logits)
            last = logits[-1]
        if parts:
            prompts.append(PromptPart(row, begin + 1, concatenated(parts)))
        return last

    @scoped("tenonry: sample")
    def _sample(self, inputs: StepInputs, logits: torch.Tensor) -> Sampled:
        step = self._sample_step(inputs)
        sampled = self.sampler.sample(logits, step)
        self.history.record(step.row, step.length, sampled.token_ids, self.buffers)
        columns = self.sampler.columns
        if not self._has_prompt_logits and columns.needs_prompt_logprobs(step.row):
            asks = self.buffers.put("asks", columns.prompt_logprobs[step.row] >= 0)
            sampled.failure.masked_fill_(asks, RowFailure.PROMPT_LOGPROBS)
        return sampled

    def _sample_step(self, inputs: StepInputs) -> SampleStep:
        """The rows that sample."""
        rows = inputs.row[inputs.samples]
        return SampleStep(rows, self.state.num_output[rows] - 1, inputs.seq_lens[inputs.samples])
