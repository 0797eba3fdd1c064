"""Images of running rows: inputs of a step's forward pass if prompts hold any. Worker process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from tenonry.step import RowFailure
from tenonry_worker_torch.images.request import RequestImages
from tenonry_worker_torch.runner.feature import RunnerFeature, Split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tenonry.step import NewRow
    from tenonry_scheduling.columns import StepInputs
    from tenonry_worker_torch.images.encoder import ImageEncoder
    from tenonry_worker_torch.images.request import Span
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.step import Step

logger = logging.getLogger("tenonry.worker")


class NoImages(RunnerFeature):
    """Fails requests with images if the model has no image input. Their clients learn it, and no other request."""

    name: ClassVar[str] = "no_images"
    sees_decodes: ClassVar[bool] = False

    @classmethod
    def is_active(cls, context: RunnerContext) -> bool:
        return context.model.images is None

    def enter(self, new: NewRow) -> None:
        if new.media is not None:
            logger.error("max_images=0: a request has images, but image input is disabled")
            self.context.failures.set(new.row, RowFailure.MEDIA)


class ImageRows(RunnerFeature):
    """Columns over rows (S): prompt i64[S], tokens of the prompts that hold images, 0 for other rows; shift i64[S],
    offset between index and position of later tokens. Rows whose images the model does not accept fail.
    """

    name: ClassVar[str] = "images"
    conflicts: ClassVar[Mapping[str, str]] = {
        "pipeline_parallel_size": "images are not sent between stages; use --tensor-parallel-size instead, or "
        "max_images=0",
        "max_loras": "no adapters are served where images are read; set one of them to 0",
    }
    split: ClassVar[Split] = Split.BETWEEN_ROWS  # an image is seen as a whole

    @classmethod
    def is_active(cls, context: RunnerContext) -> bool:
        return context.model.images is not None

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        size = len(context.state.handle)
        self._prompt = np.zeros(size, np.int64)
        self._shift = np.zeros(size, np.int64)
        self._requests: dict[int, RequestImages] = {}

    @property
    def encoder(self) -> ImageEncoder:
        """Vision encoder of the current model."""
        return self.context.model.images  # type: ignore[return-value] - see `is_active`

    def enter(self, new: NewRow) -> None:
        self._forget(new.row)
        if new.media is None:
            return
        prompt = new.token_ids[: len(new.token_ids) - new.num_output]
        try:
            images = RequestImages(new.media)
            images.find_places(prompt, self.encoder.token_id)
            if self.encoder.sees_spans:
                images.require_whole()
            if self.encoder.has_rope_index:
                found = self.encoder.positions(prompt, images.spans, images.inputs)
                images.positions, self._shift[new.row] = found
        except Exception as error:  # noqa: BLE001 - any class: it is the model's code, over what a front end sent
            self._fail(new.row, error)
            return
        self._prompt[new.row] = len(prompt)
        self._requests[new.row] = images

    def leave(self, rows: NDArray[np.int32]) -> None:
        for row in rows.tolist():
            self._forget(row)

    def prepare(self, step: Step) -> None:
        step.last_seen = self._last_seen(step.inputs)
        step.model_inputs, step.positions = self._inputs(step.inputs, step.token_ids)

    def _forget(self, row: int) -> None:
        self._requests.pop(row, None)
        self._prompt[row] = self._shift[row] = 0

    def _last_seen(self, step: StepInputs) -> NDArray[np.int64] | None:
        """`AttentionBatch.last_seen` of the step, if the tokens of an image see one another.

        Raises RuntimeError for a step that ends in an image.
        """
        if not self.encoder.sees_spans or not self._requests:
            return None
        found: NDArray[np.int64] | None = None
        for place in np.flatnonzero(step.start < self._prompt[step.row]).tolist():
            row = int(step.row[place])
            begin = int(step.start[place])
            end = begin + int(step.num_tokens[place])
            first = int(step.query_start_loc[place]) - begin
            for low, stop in self._requests[row].runs(begin, end):
                if stop > end:
                    raise RuntimeError(
                        f"row {row} computes tokens {begin} to {end}, and those from {low} to {stop} are of one image, "
                        f"which `Media.whole` forbids"
                    )
                if found is None:
                    found = step.positions.astype(np.int64)
                found[first + max(low, begin) : first + stop] = stop - 1
        return found

    def _inputs(
        self, step: StepInputs, token_ids: torch.Tensor
    ) -> tuple[torch.Tensor, NDArray[np.int64]]:
        """Inputs of the model: token ids i64[T], or embeddings [T, H] if a prompt's image is in the step; and positions
        i64[T], or i64[3, T] if they have several dimensions there.
        """
        positions = step.positions.astype(np.int64)
        self.encoder.begin_step()
        if not self._requests:
            return token_ids, positions
        positions += self._shift[step.token_row]
        in_prompt = np.flatnonzero(step.start < self._prompt[step.row])
        if not len(in_prompt):
            return token_ids, positions
        if self.encoder.has_rope_index:
            positions = np.repeat(positions[None], 3, 0)
        embeddings: torch.Tensor | None = None
        for place in in_prompt.tolist():
            row = int(step.row[place])
            begin = int(step.start[place])
            end = begin + int(step.num_tokens[place])
            first = int(step.query_start_loc[place])
            images = self._requests[row]
            if images.positions is not None:
                stop = min(end, int(self._prompt[row]))
                positions[:, first : first + stop - begin] = images.positions[:, begin:stop]
            for number in images.overlapping(begin, end):
                if embeddings is None:
                    embeddings = self.encoder.embed(token_ids).clone()
                self._place(row, number, embeddings, first, (begin, end))
            images.forget_before(end)
        return (token_ids if embeddings is None else embeddings), positions

    def _place(
        self, row: int, number: int, embeddings: torch.Tensor, first: int, chunk: Span
    ) -> None:
        """Write the embeddings of an image in a chunk of its row, whose first token is at `first` in the step's."""
        images = self._requests[row]
        made = images.embeddings[number]
        if made is None:
            made = self._encoded(row, number)
        if made is None:
            return
        images.embeddings[number] = made
        tokens, part = images.shown(number, *chunk)
        self.encoder.place(embeddings, tokens + (first - chunk[0]), made[part])

    def _encoded(self, row: int, number: int) -> torch.Tensor | None:
        images = self._requests[row]
        count = images.count(number)
        digest = images.digests[number]
        made = self.encoder.encoded.get(digest)
        if made is not None and len(made) == count:
            return made
        try:
            made = self.encoder.encode(images.inputs[number])
            if len(made) != count:
                raise ValueError(f"{count} tokens stand for {len(made)} embeddings")
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(row, error)
            return None
        self.encoder.encoded.put(digest, made)
        return made

    def _fail(self, row: int, error: Exception) -> None:
        logger.error("an image does not fit %s: %r", self.encoder.family, error)
        self.context.failures.set(row, RowFailure.MEDIA)
