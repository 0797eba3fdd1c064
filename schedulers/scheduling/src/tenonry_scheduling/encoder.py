"""Limit on image tokens encoded per step, so that a prompt with many images does not delay all others. Engine process.

A worker encodes an image as a whole in the step that computes the first of its tokens, and encodes it again for a row
that resumes in the middle of an image. So a row's chunk ends before an image that exceeds the step's limit. The
worker's image cache is ignored: each image counts as encoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenonry.request import Request
from tenonry.step import I32
from tenonry_scheduling.rows import Index

Image = tuple[int, int]  # its first token in the prompt, and the one after its last


class EncoderLimit:
    """Limits image tokens per step to `most`; a larger image is encoded in a separate step.

    `to_encode`: by row, in order, images without a computed token. Up to `max_passing` waiting requests may pass one
    whose next image does not fit; `passed`: by handle of such a request, the number of those.
    """

    __slots__ = (
        "_chunked",
        "_max_passing",
        "_most",
        "_refused",
        "passed",
        "to_encode",
        "tokens_left",
    )

    def __init__(self, most: int, max_passing: int, *, chunked_prefill: bool) -> None:
        self._most = most
        self._max_passing = max_passing
        self._chunked = chunked_prefill
        self.passed: dict[int, int] = {}
        self.to_encode: dict[int, list[Image]] = {}
        self.tokens_left = most
        self._refused: set[int] = set()  # in this step

    def begin_step(self) -> None:
        """Start a step without encoded images, which visits requests in order."""
        self.tokens_left = self._most
        self._refused.clear()

    @property
    def is_closed(self) -> bool:
        """Return True if no more requests may pass a waiting one."""
        return any(self.passed[handle] >= self._max_passing for handle in self._refused)

    def enter(self, request: Request, row: int, num_computed: int) -> None:
        """Start the request in `row`; `num_computed` of its tokens have K/V."""
        self.forget(request.handle)
        for handle in self.passed:
            self.passed[handle] += 1
        images = images_after(request, num_computed)
        if images:
            self.to_encode[row] = images

    def forget(self, handle: int) -> None:
        """Remove a request that does not wait any more."""
        self.passed.pop(handle, None)
        self._refused.discard(handle)

    def leave(self, row: int) -> None:
        """Free the row."""
        self.to_encode.pop(row, None)

    def fit_first(self, request: Request, start: int, wanted: int) -> int:
        """Number of `wanted` tokens from `start` on that a starting request may compute."""
        count = self._fit(images_after(request, start), start, wanted, self.tokens_left)
        if count <= 0:
            self.passed.setdefault(request.handle, 0)
            self._refused.add(request.handle)
        return count

    def fit(self, row: int, start: int, wanted: int) -> int:
        """Number of `wanted` tokens from `start` on that the row may compute."""
        return self._fit(self.to_encode.get(row, ()), start, wanted, self.tokens_left)

    def cut(self, rows: Index, start: I32, wanted: I32) -> tuple[Index, I32]:
        """Return rows that may compute tokens, with their numbers; earlier rows first."""
        count = wanted.copy()
        left = self.tokens_left
        for place in np.isin(rows, list(self.to_encode)).nonzero()[0].tolist():
            images = self.to_encode[int(rows[place])]
            begin = int(start[place])
            fits = self._fit(images, begin, int(wanted[place]), left)
            if fits:
                left -= tokens_before(images, begin + fits)
            count[place] = fits
        keep = count.nonzero()[0]
        return rows[keep], count[keep]

    def advance(self, row: int, end: int) -> None:
        """Advance the row's tokens to `end` in this step."""
        images = self.to_encode.get(row)
        if images is None:
            return
        self.tokens_left -= tokens_before(images, end)
        rest = [image for image in images if image[0] >= end]
        if rest:
            self.to_encode[row] = rest
        else:
            del self.to_encode[row]

    def _fit(self, images: Sequence[Image], start: int, wanted: int, left: int) -> int:
        """Number of tokens whose images fit into `left`; all or nothing without chunked prefill."""
        end = start + wanted
        if not self._chunked:
            size = tokens_before(images, end)
            fits = not size or left == self._most or size <= left
            return wanted if fits else 0
        for begin, stop in images:
            if begin >= end:
                break
            size = stop - begin
            if size > left and left < self._most:
                return max(begin - start, 0)
            left -= size
        return wanted


def images_after(request: Request, num_computed: int) -> list[Image]:
    """Images of a request with a token at `num_computed` or later."""
    media = request.source.media
    if media is None:
        return []
    spans = ((begin, begin + count) for begin, count in media.spans.tolist())
    return [image for image in spans if image[1] > num_computed]


def tokens_before(images: Sequence[Image], end: int) -> int:
    """Tokens of images that begin before `end`."""
    return sum(stop - begin for begin, stop in images if begin < end)
