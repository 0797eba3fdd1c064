"""Images encoded by a step's workers, counted from outside. Test process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry.config import EngineConfig
from tenonry_testkit.rules import FEW_IMAGES, STAYS_WHOLE, expect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenonry.messages import EngineCoreRequest


class EncoderChecker:
    """`begin_step`, then `ran` for each row of the step, then `end_step`.

    Also raises RuleBroken if a row ends inside an indivisible piece of its prompt.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._most = config.max_encoder_tokens or config.step_token_budget
        self._chunked = config.enable_chunked_prefill
        self.is_on = config.max_images > 0
        self._by_row: list[list[int]] = []

    def begin_step(self) -> None:
        self._by_row = []

    def ran(self, source: EngineCoreRequest, start: int, end: int, *, is_first: bool) -> None:
        """Record a row that computed its tokens from `start` up to `end`; `is_first`: for the first time since it
        entered.
        """
        for begin, count in _spans(source, "whole"):
            detail = f"a row ends at {end}, and {begin} to {begin + count} must stay whole"
            expect(not begin < end < begin + count, STAYS_WHOLE, detail)
        sizes = []
        for begin, count in _spans(source, "spans"):
            is_cut = is_first and begin < start < begin + count
            if start <= begin < end or is_cut:
                sizes.append(count)
        if sizes:
            self._by_row.append(sizes)

    def end_step(self, step_id: int) -> None:
        """Raise RuleBroken for a step that encodes too much."""
        sizes = [size for row in self._by_row for size in row]
        is_one = len(sizes) <= 1 or (not self._chunked and len(self._by_row) == 1)
        detail = f"step {step_id} encodes {sizes}, max_encoder_tokens={self._most}"
        expect(sum(sizes) <= self._most or is_one, FEW_IMAGES, detail)


def _spans(source: EngineCoreRequest, name: str) -> Iterable[tuple[int, int]]:
    spans = [] if source.media is None else getattr(source.media, name).tolist()
    return [(begin, count) for begin, count in spans]
