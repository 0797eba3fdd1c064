"""The requests that are running, and the pieces that hold their computed state. Worker process."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from tenonry_worker_transformers.pieces import Batcher, Batching, Piece, groups
from tenonry_worker_transformers.trees import NotBatchable

if TYPE_CHECKING:
    from transformers import LogitsProcessorList

    from tenonry.step import NewRow
    from tenonry_worker_transformers.generation import GenerateCalls

logger = logging.getLogger("tenonry.worker")
GONE = -1


class Request:
    """One request in its row: `num_prompt` tokens, `num_fed` of all its tokens computed; `piece` once there are any.

    `encoded` i64[1, P] is the prompt of an encoder-decoder model, whose pieces hold the decoder's tokens.
    """

    __slots__ = ("encoded", "max_new_tokens", "num_fed", "num_prompt", "piece", "processors", "row")

    def __init__(self, new: NewRow, max_model_len: int) -> None:
        self.row = new.row
        self.num_prompt = len(new.token_ids) - new.num_output
        most = max(1, max_model_len - self.num_prompt)
        self.max_new_tokens = new.sampling.max_tokens or most
        self.num_fed = 0
        self.piece: Piece | None = None
        self.encoded: torch.Tensor | None = None
        self.processors: LogitsProcessorList | None = None


class Sequences:
    """`chunks`: True if several tokens may follow others in one call. `batching`: rows that may be decoded together."""

    def __init__(
        self, calls: GenerateCalls, *, chunks: bool, batching: Batching, max_model_len: int
    ) -> None:
        self._calls = calls
        self._chunks = chunks
        self._batching = batching
        self._max_model_len = max_model_len
        self._requests: dict[int, Request] = {}
        self._batcher = Batcher(calls.mask_name)

    # ------------------------------------------------------------------ rows come and go

    def enter(self, new: NewRow) -> None:
        """A request starts, or comes back and is computed again."""
        self.leave(new.row)
        self._requests[new.row] = Request(new, self._max_model_len)

    def leave(self, row: int) -> None:
        """Forget a row; in a piece with others its state goes when these are decoded next."""
        request = self._requests.pop(row, None)
        if request is not None and request.piece is not None:
            piece = request.piece
            piece.rows[piece.rows.index(row)] = GONE

    def is_decoding(self, row: int, end: int) -> bool:
        """Return True if only the token before position `end` is missing, and the prompt is not."""
        request = self._requests[row]
        has_prompt = request.piece is not None and request.num_fed >= request.num_prompt
        return has_prompt and end == request.num_fed + 1

    def num_fed(self, row: int) -> int:
        """Number of the row's computed tokens."""
        return self._requests[row].num_fed

    def processors_of(self, row: int) -> LogitsProcessorList | None:
        """The rules of the model's generation config for the row's request."""
        return self._requests[row].processors

    def ids_of(self, row: int) -> torch.Tensor:
        """Ids that precede the row's next token, i64[1, L]."""
        piece = self._requests[row].piece
        assert piece is not None  # noqa: S101 - only for rows that sample
        return piece.ids_of(row)

    # ------------------------------------------------------------------ prompts

    def prompt(
        self,
        row: int,
        tokens: torch.Tensor,
        end: int,
        *,
        is_last: bool,
        all_logits: bool,
        most: int,
    ) -> Iterator[torch.Tensor]:
        """Compute `row` up to position `end` of its `tokens` i64[1, …], which hold the whole prompt.

        Logits [K, V] of each call, those of the last position at the end; nothing while tokens are collected: a prompt
        that cannot be split is computed when its last chunk has arrived. `most`: maximum tokens of a call, if it can.
        """
        request = self._requests[row]
        cut = self._chunks and not self._calls.is_encoder_decoder
        if not cut and not is_last and end <= request.num_prompt:
            return
        if request.piece is None:
            yield self._start(
                request, tokens, min(end, most) if cut else end, all_logits=all_logits
            )
        while request.num_fed < end:
            stop = min(end, request.num_fed + most) if self._chunks else request.num_fed + 1
            ids = tokens[:, request.num_fed : stop]
            logits = self._calls.feed(request.piece, ids, all_logits=all_logits)
            request.num_fed = stop
            yield logits[0]

    def _start(
        self, request: Request, tokens: torch.Tensor, end: int, *, all_logits: bool
    ) -> torch.Tensor:
        prompt = tokens[:, : request.num_prompt]
        prepared = self._calls.prepare(prompt, request.max_new_tokens)
        request.processors = prepared.processors
        request.num_fed = request.num_prompt
        count = prepared.input_ids.shape[1]
        if self._calls.is_encoder_decoder:
            request.encoded = prompt
        else:
            count = request.num_fed = min(end, request.num_prompt)
        ids, logits, kwargs = self._calls.start(prepared, count, all_logits=all_logits)
        request.piece = Piece([request.row], ids, kwargs)
        return logits[0]

    # ------------------------------------------------------------------ decoding

    def decode(self, rows: list[int], token_ids: torch.Tensor) -> torch.Tensor:
        """The next token of each of `rows`, i64[B]; logits [B, V] in the same order."""
        place = {row: number for number, row in enumerate(rows)}
        found = []
        order: list[int] = []
        for piece in self._arranged(rows):
            places = [place[row] for row in piece.rows]
            ids = token_ids[torch.tensor(places, device=token_ids.device)]
            logits = self._calls.feed(piece, ids[:, None])
            found.append(logits[:, -1])
            order += places
        for row in rows:
            self._requests[row].num_fed += 1
        if len(found) == 1 and order == sorted(order):
            return found[0]
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return torch.cat(found)[back.to(token_ids.device)]

    def _arranged(self, rows: Sequence[int]) -> list[Piece]:
        """Pieces that hold `rows` and no other, as few as may be."""
        for row in rows:
            self._without_padding_at_the_limit(row)
        wanted = set(rows)
        pieces = []
        for piece in {id(p): p for p in map(self._piece, rows)}.values():
            inside = [row for row in piece.rows if row in wanted]
            outside = [row for row in piece.rows if row not in wanted and row != GONE]
            if len(inside) == len(piece.rows):
                pieces.append(piece)
                continue
            moved = self._moved(piece, inside)
            if moved.is_mostly_padding:  # a long row has left
                pieces += [self._computed_again(row) for row in inside]
            else:
                pieces.append(moved)
            if outside:
                self._moved(piece, outside)
        if len(pieces) == 1:
            return pieces
        return [piece for group in groups(self._batching, pieces) for piece in self._joined(group)]

    def _without_padding_at_the_limit(self, row: int) -> None:
        """Compute `row` again if the next position is beyond the model's last because of padding on its left."""
        piece = self._piece(row)
        if piece.length < self._max_model_len or not any(piece.padding):
            return
        self._computed_again(row)

    def _computed_again(self, row: int) -> Piece:
        """Separate piece, without padding, for a row for which others were padded."""
        piece = self._piece(row)
        request = self._requests[row]
        ids = piece.ids_of(row)
        piece.rows[piece.rows.index(row)] = GONE
        # As it was computed before: the tokens of a prompt may see one another, and those of the output may not.
        prompt = ids[:, : request.num_prompt]
        start = prompt if request.encoded is None else request.encoded
        prepared = self._calls.prepare(start, request.max_new_tokens)
        count = prepared.input_ids.shape[1]
        fed, _, kwargs = self._calls.start(prepared, count)
        made = Piece([row], fed, kwargs)
        request.piece = made
        rest = ids[:, count:]
        for part in [rest] if self._chunks else rest.split(1, 1):
            if part.shape[1]:
                self._calls.feed(made, part)
        return made

    def _joined(self, group: list[Piece]) -> list[Piece]:
        if len(group) == 1:
            return group
        try:
            return [self._settled(self._batcher.joined(group))]
        except NotBatchable as error:
            self._batching = Batching(max(self._batching - 1, Batching.NONE))
            logger.warning("Decoding rows one by one: %s", error)
            return group

    def _moved(self, piece: Piece, rows: list[int]) -> Piece:
        return self._settled(self._batcher.taken(piece, rows))

    def _settled(self, piece: Piece) -> Piece:
        for row in piece.rows:
            self._requests[row].piece = piece
        return piece

    def _piece(self, row: int) -> Piece:
        piece = self._requests[row].piece
        assert piece is not None  # noqa: S101 - of rows that decode
        return piece
