"""The images of one request. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from tenonry.step import Media

Span = tuple[int, int]  # first token of an image in its prompt, and the one after its last


class RequestImages:
    """`spans`, `digests` and `inputs` of each image, in order; `embeddings` [n, H] of each, once it was encoded.

    `places` i64[n] of each, in order: the tokens of its span, counted from its first, that are replaced by an
    embedding; None if all are. `positions` i64[3, P] of the prompt, if the model has positions of several dimensions.
    `whole`: the pieces in which no step ends.
    """

    __slots__ = ("digests", "embeddings", "inputs", "places", "positions", "spans", "whole")

    def __init__(self, media: Media) -> None:
        """Raise ValueError if the numbers of digests or inputs differ from that of spans."""
        num_images = len(media.spans)
        if not num_images == len(media.digests) == len(media.inputs):
            raise ValueError(
                f"{num_images} images have {len(media.digests)} digests and {len(media.inputs)} inputs"
            )
        self.spans: list[Span] = [(begin, begin + count) for begin, count in media.spans.tolist()]
        self.digests = [digest.tobytes() for digest in media.digests]
        self.inputs = media.inputs
        self.embeddings: list[torch.Tensor | None] = [None] * num_images
        self.places: list[NDArray[np.int64] | None] = [None] * num_images
        self.positions: NDArray[np.int64] | None = None
        self.whole: list[Span] = [(begin, begin + count) for begin, count in media.whole.tolist()]

    def find_places(self, prompt: NDArray[np.int32], token_id: int | None) -> None:
        """Find the tokens of the prompt i32[P] that are `token_id`: others may be between the tiles of an image."""
        if token_id is None:
            return
        for number, (begin, stop) in enumerate(self.spans):
            found = np.flatnonzero(prompt[begin:stop] == token_id)
            if len(found) < stop - begin:
                self.places[number] = found

    def require_whole(self) -> None:
        """Raise ValueError if a step may end within the tokens of one image."""
        end = self.spans[-1][1]
        for begin, stop in self.runs(0, end):
            if not any(low <= begin and stop <= high for low, high in self.whole):
                raise ValueError(
                    f"`Media.whole` lacks the tokens {begin} to {stop}, which see one another"
                )

    def runs(self, begin: int, end: int) -> list[Span]:
        """Runs of neighbouring image tokens, each of one image, with a token from `begin` on, before `end`."""
        found = []
        for number in self.overlapping(begin, end):
            first, stop = self.spans[number]
            places = self.places[number]
            if places is None:
                found.append((first, stop))
                continue
            cuts = np.flatnonzero(np.diff(places) != 1) + 1
            pieces = np.split(places + first, cuts)
            found += [(int(piece[0]), int(piece[-1]) + 1) for piece in pieces if len(piece)]
        return [(low, high) for low, high in found if low < end and high > begin]

    def count(self, number: int) -> int:
        """Number of embeddings of an image."""
        begin, stop = self.spans[number]
        places = self.places[number]
        return stop - begin if places is None else len(places)

    def shown(self, number: int, begin: int, end: int) -> tuple[NDArray[np.int64], slice]:
        """Image tokens from `begin` on, before `end`, i64[n], and the indices of their embeddings."""
        first, stop = self.spans[number]
        low = max(first, begin)
        high = min(stop, end)
        places = self.places[number]
        if places is None:
            return np.arange(low, high), slice(low - first, high - first)
        start, last = np.searchsorted(places, [low - first, high - first]).tolist()
        return first + places[start:last], slice(start, last)

    def overlapping(self, begin: int, end: int) -> list[int]:
        """The images that have a token from `begin` on, before `end`."""
        return [
            number
            for number, (first, stop) in enumerate(self.spans)
            if first < end and stop > begin
        ]

    def forget_before(self, end: int) -> None:
        """The embeddings of images that end before `end` are not needed again."""
        for number, (_, stop) in enumerate(self.spans):
            if stop <= end:
                self.embeddings[number] = None
