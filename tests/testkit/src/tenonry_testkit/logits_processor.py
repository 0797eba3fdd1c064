"""The conformance suite of logits processors of workers on torch: rows are independent. Test process.

from tenonry_testkit.logits_processor import LogitsProcessorContract

class TestMine(LogitsProcessorContract):
    logits_processor = "my_package:MyProcessor"
    asking = {"extra_args": {"mine": True}}

Install `tenonry-testkit[torch]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow
from tenonry_testkit.targets import resolve_target
from tenonry_torch_base.points import LOGITS_PROCESSORS
from tenonry_torch_base.sampler.processors import LogitsProcessor, ProcessorContext, SampleStep

ROWS, LENGTH, VOCABULARY = 6, 48, 40


class Rows:
    """Rows of one processor, with their tokens."""

    def __init__(self, cls: type[LogitsProcessor]) -> None:
        self.history = np.zeros((ROWS, LENGTH), np.int32)
        context = ProcessorContext(
            ROWS, VOCABULARY, torch.device("cpu"), torch.from_numpy(self.history), self.history
        )
        self.processor = cls(context)
        self.tokens: dict[int, list[int]] = {}
        self.num_prompt: dict[int, int] = {}

    def enter(
        self, row: int, params: SamplingParams, prompt: Sequence[int], output: Sequence[int] = ()
    ) -> bool:
        """Start or resume a row; returns True if it needs the processor."""
        tokens = [*prompt, *output]
        self.history[row, : len(tokens)] = tokens
        self.tokens[row], self.num_prompt[row] = tokens, len(prompt)
        needs = self.processor.enter(
            NewRow(
                row=row,
                handle=row + 1,
                token_ids=np.array(tokens, np.int32),
                num_computed=0,
                num_output=len(output),
                block_ids=(np.empty(0, np.int32),),
                sampling=params,
                stop_token_ids=(VOCABULARY - 1,),
            )
        )
        assert isinstance(needs, bool | np.bool_), f"enter returns {needs!r}, which is no bool"
        self.processor.active[row] = needs
        return bool(needs)

    def leave(self, row: int) -> None:
        """Remove a row."""
        if self.processor.active[row]:
            self.processor.leave(row)
        self.processor.active[row] = False
        del self.tokens[row]

    def step(self, rows: Sequence[int]) -> SampleStep:
        """Sample these rows."""
        length = np.array([len(self.tokens[row]) for row in rows], np.int32)
        prompt = np.array([self.num_prompt[row] for row in rows], np.int32)
        return SampleStep(np.array(rows, np.int32), length - prompt, length)

    def logits(self, rows: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """The logits of these rows, processed as the sampler does."""
        step = self.step(rows)
        changed = logits.clone()
        self.processor.prepare(step)
        self.processor.apply(changed, step)
        return changed

    def accept(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Record the chosen tokens."""
        for row, token in zip(rows, tokens, strict=True):
            self.history[row, len(self.tokens[row])] = token
            self.tokens[row].append(token)
        self.processor.accept(np.array(rows, np.int32), torch.tensor(tokens))


class LogitsProcessorContract:
    """Subclass in a test module and name the `logits_processor`; `asking`: fields of SamplingParams of a request that
    needs it.

    `is_for_all`: other requests need it, too. `changes_any`: it changes at least some logits of such a request.
    """

    logits_processor: ClassVar[str | type[LogitsProcessor] | None] = None
    asking: ClassVar[Mapping[str, Any]] = {}
    is_for_all: ClassVar[bool] = False
    changes_any: ClassVar[bool] = True

    # ------------------------------------------------------------------ tools, for tests of your own
    def rows(self) -> Rows:
        """Rows of a fresh processor."""
        target: Any = self.logits_processor
        cls, _, _ = resolve_target(LOGITS_PROCESSORS, target)
        return Rows(cls)

    def params(self) -> SamplingParams:
        """Parameters of a request that needs it."""
        return SamplingParams(**self.asking)

    def draw(self, count: int, seed: int = 0) -> torch.Tensor:
        """Logits f32[count, vocabulary]."""
        return torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(seed)).mul_(
            3.0
        )

    # ------------------------------------------------------------------ the contract
    def test_it_has_a_name_and_a_version(self) -> None:
        """It resolves, and declares both."""
        made = self.rows().processor
        assert isinstance(made, LogitsProcessor)
        assert made.name
        assert made.interface_version == 1

    def test_only_requests_that_ask_need_it(self) -> None:
        """A row that needs a processor costs time in every step."""
        rows = self.rows()
        assert rows.enter(0, self.params(), (1, 2, 3)), "a request that asks does not need it"
        if not self.is_for_all:
            assert not rows.enter(1, SamplingParams(), (1, 2, 3)), "a plain request needs it"

    def test_logits_change_in_place(self) -> None:
        """For some tokens; none becomes NaN, and at least one can be sampled."""
        rows = self.rows()
        rows.enter(0, self.params(), (1, 2, 3))
        changed = False
        for seed in range(4):
            logits = self.draw(1, seed)
            found = rows.logits([0], logits)
            assert not found.isnan().any(), "logits become NaN"
            assert found.isfinite().any(), "no token is left"
            changed |= not torch.equal(found, logits)
            rows.accept([0], [int(found.argmax())])
        assert changed or not self.changes_any, "the logits are what they were"

    def test_a_row_depends_on_no_other(self) -> None:
        """Logits of a row are the same in any batch, and in any order of rows."""
        prompts = {row: tuple(range(row, row + 3 + row)) for row in range(4)}
        alone = {}
        for row, prompt in prompts.items():
            rows = self.rows()
            rows.enter(row, self.params(), prompt)
            alone[row] = rows.logits([row], self.draw(1, row))
        rows = self.rows()
        for row, prompt in prompts.items():
            rows.enter(row, self.params(), prompt)
        for order in ([0, 1, 2, 3], [3, 1], [2, 0, 3]):
            logits = torch.cat([self.draw(1, row) for row in order])
            found = rows.logits(order, logits)
            for place, row in enumerate(order):
                assert torch.equal(found[place : place + 1], alone[row]), f"row {row} in {order}"

    def test_the_same_tokens_have_the_same_logits(self) -> None:
        """Repeated calls have no effect: only `accept` adds a token."""
        rows = self.rows()
        rows.enter(2, self.params(), (4, 5))
        logits = self.draw(1)
        first = rows.logits([2], logits)
        assert all(torch.equal(rows.logits([2], logits), first) for _ in range(3))

    def test_a_row_keeps_nothing_of_the_request_before_it(self) -> None:
        """The next request of a row starts without state."""
        fresh = self.rows()
        fresh.enter(1, self.params(), (7, 8))
        wanted = fresh.logits([1], self.draw(1))
        rows = self.rows()
        rows.enter(1, self.params(), (1, 2, 3))
        for token in (5, 6, 5):
            rows.logits([1], self.draw(1))
            rows.accept([1], [token])
        rows.leave(1)
        rows.enter(1, self.params(), (7, 8))
        assert torch.equal(rows.logits([1], self.draw(1)), wanted)

    def test_a_row_that_comes_back_goes_on(self) -> None:
        """After preemption it enters with its outputs, in another row; logits are those without preemption."""
        rows = self.rows()
        rows.enter(0, self.params(), (1, 2))
        for token in (9, 3, 9):
            rows.accept([0], [token])
        wanted = rows.logits([0], self.draw(1))
        back = self.rows()
        back.enter(3, self.params(), (1, 2), (9, 3, 9))
        assert torch.equal(back.logits([3], self.draw(1)), wanted)

    def test_the_best_token_is_that_of_the_logits(self) -> None:
        """`best` returns None, or index and logit after `apply`, and changes nothing."""
        rows = self.rows()
        for row in (0, 1):
            rows.enter(row, self.params(), (row, 2, 3))
        for seed in range(5):
            logits = self.draw(2, seed)
            logits[:, seed] += 30.0  # also a token of the prompts
            before = logits.clone()
            answer = rows.processor.best(logits, rows.step([0, 1]))
            assert torch.equal(logits, before), "best changes the logits"
            if answer is None:
                continue
            values, places = rows.logits([0, 1], logits).max(-1)
            assert answer[0].tolist() == places.tolist()
            assert torch.equal(answer[1].float(), values)

    def test_drafts_fit_as_far_as_they_are_long(self) -> None:
        """`fitting` returns the number of accepted leading drafts."""
        rows = self.rows()
        rows.enter(0, self.params(), (1, 2, 3))
        for drafts in ((), (1,), (4, 5, 6, 7)):
            number = rows.processor.fitting(0, 3, np.array(drafts, np.int32))
            assert 0 <= number <= len(drafts), f"{number} of {len(drafts)} drafts"

    def test_requests_are_prepared(self) -> None:
        """`compile` returns ready requests, among the requested ones only."""
        ready = list(self.rows().processor.compile({3: None, 8: None}, 0.0))
        assert set(ready) <= {3, 8}, f"compile names {ready}"

    def test_it_shuts_down(self) -> None:
        """With running rows."""
        rows = self.rows()
        rows.enter(0, self.params(), (1, 2, 3))
        rows.processor.shutdown()
