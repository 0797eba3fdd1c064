"""The tokens that a request computes in a step, found by trying all numbers. Any process.

Slow and obviously correct: the limits of `StepBuilder.run`, as its docstring and the classes of limits state them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tenonry.request import Request

Span = tuple[int, int]  # first token, and the one after the last


class Budget(Protocol):
    """A step, as far as its tokens go."""

    @property
    def tokens_left(self) -> int: ...

    @property
    def prompt_logprob_tokens_left(self) -> int: ...


class ExpectedTokens:
    """Follows the rows of a scheduler. `entered`: by handle of requests with a row, their tokens when they started.

    `images_left`: image tokens that the step may encode, `most` of them in an empty one. `is_refused`: an image or an
    adapter made a request of this step wait.
    """

    def __init__(self, scheduler: Any) -> None:
        config = scheduler.context.config
        self._chunked = scheduler.chunked_prefill
        self._has_images = config.max_images > 0
        self._budget = config.step_token_budget
        self.most = config.max_encoder_tokens or self._budget
        self.entered: dict[int, int] = {}
        self.images_left = self.most
        self.is_refused = False

    def begin_step(self) -> None:
        """Start a step that has encoded nothing."""
        self.images_left = self.most
        self.is_refused = False

    def tokens(self, step: Budget, request: Request, start: int, wanted: int) -> int:
        """Number of `wanted` tokens from `start` on that the request computes."""
        share = step.prompt_logprob_tokens_left if self._has_share(request, start) else None
        if share is not None and share <= 0:
            return 0
        most = wanted
        if share is not None and self._chunked:
            most = min(wanted, share)
        pieces = spans(request, "whole") if self._has_images else []
        for count in range(min(most, step.tokens_left), 0, -1):
            if not self._chunked and count < wanted <= self._budget:
                return 0
            if self.fits(request, start, count) and not _is_cut(pieces, start + count):
                return count
        for begin, stop in pieces:  # one in which all smaller numbers end is computed as a whole
            if begin <= start < stop and most < stop - start <= step.tokens_left:
                return stop - start if self.fits(request, start, 1) else 0
        return 0

    def fits(self, request: Request, start: int, count: int) -> bool:
        """Return True if the step can encode the images of these tokens."""
        sizes = self._sizes(request, start, start + count)
        left = self.images_left
        is_alone = left == self.most and (len(sizes) == 1 or not self._chunked)
        return not sizes or is_alone or sum(sizes) <= left

    def ran(self, request: Request, start: int, end: int) -> None:
        """Record the tokens that a request computes in this step."""
        self.images_left -= sum(self._sizes(request, start, end))

    def _sizes(self, request: Request, start: int, end: int) -> list[int]:
        """Sizes of the images that these tokens of the request encode."""
        if not self._has_images:
            return []
        is_first = start == self.entered.get(request.handle, start)
        return [
            stop - begin
            for begin, stop in spans(request, "spans")
            if start <= begin < end or (is_first and begin < start < stop)
        ]

    def _has_share(self, request: Request, start: int) -> bool:
        has_logprobs = request.source.sampling_params.prompt_logprobs is not None
        return has_logprobs and start < request.num_prompt_tokens


def spans(request: Request, name: str) -> list[Span]:
    """Images of a request, or its pieces."""
    media = request.source.media
    rows: Iterable[Any] = () if media is None else getattr(media, name).tolist()
    return [(begin, begin + count) for begin, count in rows]


def _is_cut(pieces: Iterable[Span], end: int) -> bool:
    return any(begin < end < stop for begin, stop in pieces)
