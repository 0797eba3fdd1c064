"""Checks a scheduler's steps from outside, with plain Python containers. Test process.

Slow and obviously correct, unlike the fast validator of `tenonry-scheduling`: the two check each other.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from tenonry.kv_cache import KVCacheConfig
from tenonry.step import ModelRunnerOutput, NewRow, SchedulerOutput
from tenonry_testkit.encoder_checker import EncoderChecker
from tenonry_testkit.grammar_checker import GrammarChecker
from tenonry_testkit.ledger import Entry, Ledger
from tenonry_testkit.rules import (
    FEW_ADAPTERS,
    HAS_SLOT,
    KNOWN_AND_UNFINISHED,
    LIMITS,
    NO_CHUNKS,
    NO_OVERRUN,
    NO_PENDING,
    NOT_STARVED,
    ONE_WRITER,
    ROUNDS,
    RuleBroken,
    expect,
)
from tenonry_testkit.slot_checker import SlotChecker
from tenonry_testkit.spec import HarnessSpec


class Stay:
    """One request in one row, from its entry to its exit."""

    __slots__ = (
        "blocks", "entered_at", "entry", "num_computed", "num_known", "num_pending", "row", "start",
    )  # fmt: skip

    def __init__(self, new: NewRow, entry: Entry) -> None:
        self.row = new.row
        self.entry = entry
        self.num_computed = new.num_computed
        self.entered_at = new.num_computed
        self.start = new.num_computed  # first token of the checked step
        self.num_known = len(new.token_ids)
        self.num_pending = 0
        self.blocks = [ids.tolist() for ids in new.block_ids]


class StepChecker:
    """`rows`: the request of each row, as sent to workers. `waited`: for each waiting request, its overtakers."""

    def __init__(self, spec: HarnessSpec, kv_cache: KVCacheConfig, ledger: Ledger) -> None:
        self._spec = spec
        self._kv_cache = kv_cache
        self._ledger = ledger
        self._slots = SlotChecker(kv_cache)
        self.grammars = GrammarChecker(ledger)
        self.rows: dict[int, Stay] = {}
        self._writers: dict[int, Stay] = {}
        self.overtaken: dict[int, set[int]] = {}
        self.most_overtaken = 0
        self.num_preemptions = 0
        self.drafts: Counter[str] = Counter()  # with the names of `SchedulerStats`
        self.first_run: dict[int, int] = {}
        self._since: dict[int, int] = {}
        self._last_arrival = 0
        config = spec.engine_config()
        self._chunked = config.enable_chunked_prefill
        self._max_loras = config.max_loras
        self._encoder = EncoderChecker(config)

    # ------------------------------------------------------------------ what happens to requests
    def caches_were_reset(self) -> None:
        """No row starts from a snapshot that was saved before."""
        self._slots.forget()

    def arrived(self, entry: Entry) -> None:
        """Record a request that waits from now on."""
        self._last_arrival = max(self._last_arrival, entry.arrival)
        self._wait(entry)

    def _wait(self, entry: Entry) -> None:
        self.overtaken[entry.handle] = set()
        self._since[entry.handle] = self._last_arrival

    def ended(self, handle: int) -> None:
        """Record an end; the request has overtaken every earlier one that still waits."""
        self.overtaken.pop(handle, None)
        arrival = self._ledger.entries[handle].arrival
        for waiting, passed in self.overtaken.items():
            if arrival > self._since[waiting]:
                passed.add(handle)
                self.most_overtaken = max(self.most_overtaken, len(passed))

    def answered(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Continue rows of a multi-token step after their received tokens, which may be fewer than requested."""
        self.grammars.prepared(result.prepared)
        self.drafts["num_drafts"] += result.num_drafts
        self.drafts["num_draft_tokens"] += result.num_drafted
        self.drafts["num_accepted_tokens"] += result.num_accepted
        if output.round_tokens == 1:
            return
        counts = np.diff(result.offsets)
        missing_of_each = output.round_tokens - counts
        pairs = zip(result.row.tolist(), missing_of_each.tolist(), strict=True)
        for row, missing in pairs:
            stay = self.rows[row]
            stay.num_computed -= missing
            stay.num_pending -= missing

    def check_starvation(self) -> None:
        """Raise RuleBroken if a request was overtaken too often while it waited."""
        bound = self._spec.max_num_seqs
        for handle, passed in self.overtaken.items():
            detail = f"{self._ledger.entries[handle]} waited while {len(passed)} later ones came and ended; {bound} may"
            expect(len(passed) <= bound, NOT_STARVED, detail)

    # ------------------------------------------------------------------ one step
    def check(self, output: SchedulerOutput) -> None:
        """Apply the step to the records and check it. Raises RuleBroken."""
        for row in output.gone.tolist():
            expect(row in self.rows, KNOWN_AND_UNFINISHED, f"row {row} leaves, but holds nothing")
            stay = self.rows.pop(row)
            if stay.entry.is_live:
                self.num_preemptions += 1
                self._wait(stay.entry)
        for new in output.new:
            self._enter(new, output.step_id)
        self.grammars.check(output)
        self._extend(output)
        self._slots.check(output)
        total = sum(output.num_tokens.tolist())
        budget = self._spec.max_num_batched_tokens
        expect(
            total <= budget, LIMITS, f"step {output.step_id} computes {total} tokens of {budget}"
        )
        expect(
            len(self.rows) <= self._spec.max_num_seqs, LIMITS, f"{len(self.rows)} rows are in use"
        )
        for stay in self.rows.values():
            stay.start = stay.num_computed
        written: dict[int, Stay] = {}
        for row, count, samples in zip(
            output.row.tolist(), output.num_tokens.tolist(), output.samples.tolist(), strict=True
        ):
            expect(
                row in self.rows,
                KNOWN_AND_UNFINISHED,
                f"step {output.step_id} runs row {row}, which holds nothing",
            )
            ahead = output.round_tokens - 1
            if ahead:
                self._check_round(output, row, count, samples=samples)
            self._compute(self.rows[row], count, samples=samples, ahead=ahead, written=written)
        self._settle_writers(written)
        if self._max_loras:
            self._check_adapters(output)
        if self._encoder.is_on:
            self._check_images(output)

    def _check_round(self, output: SchedulerOutput, row: int, count: int, *, samples: bool) -> None:
        entry = self.rows[row].entry
        is_new = any(new.row == row for new in output.new)
        expect(
            count == 1 and samples and not is_new,
            ROUNDS,
            f"{entry} computes {count} tokens in step {output.step_id}, a round",
        )
        most = self._spec.round_tokens
        expect(
            1 < output.round_tokens <= most,
            ROUNDS,
            f"step {output.step_id} is a round of {output.round_tokens} tokens; {most} are allowed",
        )

    def _check_adapters(self, output: SchedulerOutput) -> None:
        sources = [self.rows[row].entry.request.source for row in output.row.tolist()]
        digests = {source.adapter.digest for source in sources if source.adapter is not None}
        expect(
            len(digests) <= self._max_loras,
            FEW_ADAPTERS,
            f"step {output.step_id} has {len(digests)}, max_loras={self._max_loras}",
        )

    def _check_images(self, output: SchedulerOutput) -> None:
        self._encoder.begin_step()
        for row in output.row.tolist():
            stay = self.rows[row]
            is_first = stay.start == stay.entered_at
            source = stay.entry.request.source
            self._encoder.ran(source, stay.start, stay.num_computed, is_first=is_first)
        self._encoder.end_step(output.step_id)

    def _enter(self, new: NewRow, step_id: int) -> None:
        entry = self._ledger.entries.get(new.handle)
        if entry is None:
            raise RuleBroken(KNOWN_AND_UNFINISHED, f"handle {new.handle} runs, but was never added")
        expect(entry.is_live, KNOWN_AND_UNFINISHED, f"{entry} runs in step {step_id}")
        twice = [stay.row for stay in self.rows.values() if stay.entry is entry]
        expect(
            not twice, KNOWN_AND_UNFINISHED, f"{entry} is in row {twice} and enters row {new.row}"
        )
        expect(
            new.row not in self.rows,
            KNOWN_AND_UNFINISHED,
            f"{entry} enters row {new.row}, which is in use",
        )
        entry.row_checker.check(new)
        self.rows[new.row] = Stay(new, entry)
        self.overtaken.pop(entry.handle, None)
        self.first_run.setdefault(entry.handle, step_id)

    def _extend(self, output: SchedulerOutput) -> None:
        columns = (
            output.new_block_row.tolist(),
            output.new_block_group.tolist(),
            output.new_block_id.tolist(),
        )
        for row, group, block in zip(*columns, strict=True):
            expect(
                row in self.rows,
                KNOWN_AND_UNFINISHED,
                f"row {row} gets block {block}, but holds nothing",
            )
            self.rows[row].blocks[group].append(block)

    def _compute(
        self, stay: Stay, count: int, *, samples: bool, ahead: int, written: dict[int, Stay]
    ) -> None:
        start = stay.num_computed
        stay.num_pending += ahead  # of a multi-token step: all but its last token are computed
        end = stay.num_computed + count + ahead
        self._check_length(stay, end, ahead, samples=samples)
        stay.num_computed = end
        stay.num_pending += samples
        size = self._kv_cache.block_size
        for group, blocks in enumerate(stay.blocks):
            if group in self._slots.groups:
                continue
            expect(
                len(blocks) * size >= end,
                HAS_SLOT,
                "{} has {} blocks for {} tokens",
                stay.entry,
                len(blocks),
                end,
            )
            for block in blocks[start // size : -(-end // size)]:
                expect(
                    0 <= block < self._kv_cache.num_blocks,
                    HAS_SLOT,
                    "{} has block {}",
                    stay.entry,
                    block,
                )
                other = written.get(block, stay)
                expect(
                    block not in written,
                    ONE_WRITER,
                    "block {} is written by {} and {}",
                    block,
                    stay.entry,
                    other.entry,
                )
                written[block] = stay

    def _check_length(self, stay: Stay, end: int, ahead: int, *, samples: bool) -> None:
        entry = stay.entry
        length = stay.num_known + stay.num_pending
        expect(entry.is_live, KNOWN_AND_UNFINISHED, "{} runs in row {}", entry, stay.row)
        expect(end <= self._spec.max_model_len, LIMITS, "{} would hold {} tokens", entry, end)
        expect(end <= length, NO_OVERRUN, "{} computes token {} of {}", entry, end, length)
        if samples:
            expect(
                length < entry.limit,
                NO_OVERRUN,
                "{} samples token {} of {}",
                entry,
                length + 1,
                entry.limit,
            )
        else:
            may_split = self._chunked or length > self._spec.max_num_batched_tokens
            expect(may_split, NO_CHUNKS, "{} computes tokens up to {} of {}", entry, end, length)
        if not self._spec.feeds_back or entry.wants.structured_output is not None:
            known = entry.num_before + len(entry.token_ids)
            expect(
                end - ahead <= known,
                NO_PENDING,
                "{} computes token {}, of which {} are known",
                entry,
                end - ahead,
                known,
            )

    def _settle_writers(self, written: dict[int, Stay]) -> None:
        """Check that a block written by one row is written by another only after its release."""
        for block, stay in written.items():
            before = self._writers.get(block)
            still = (
                before is not None and before is not stay and self.rows.get(before.row) is before
            )
            if still and before is not None:
                expect(
                    block not in self._held(before),
                    ONE_WRITER,
                    f"block {block} of {before.entry} is written by {stay.entry}",
                )
            self._writers[block] = stay

    def _held(self, stay: Stay) -> list[int]:
        """Blocks of the row in all groups, without those before the window of this step."""
        held: list[int] = []
        for number, blocks in enumerate(stay.blocks):
            group = self._kv_cache.groups[number]
            if group.kind == "recurrent":
                continue
            first = max(0, stay.start - group.window + 1) if group.kind == "sliding" else 0
            held += blocks[first // self._kv_cache.block_size :]
        return held
