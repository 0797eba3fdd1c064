"""Single tokens as text, as bytes, and as places in the text of a completion. Front end."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from tenonry.interfaces.io_processor import IOProcessor
from tenonry.outputs import Logprob, RequestOutput

_new_decoder = codecs.getincrementaldecoder("utf-8")


class TokenTexts:
    """Tokens as lists of log-probabilities show them; without an IO processor, by their ids alone.

    `skip_special_tokens`: special tokens add nothing to the text of this request.
    """

    __slots__ = ("_as_ids", "_io_processor", "_skip_special_tokens")

    def __init__(
        self,
        io_processor: IOProcessor | None,
        *,
        as_ids: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self._io_processor = io_processor
        self._as_ids = as_ids
        self._skip_special_tokens = skip_special_tokens

    def __call__(self, token_id: int, logprob: Logprob | None = None) -> str:
        """Return the token as a separate text, with U+FFFD for a part of a character."""
        if self._as_ids or self._io_processor is None:
            return f"token_id:{token_id}"
        if logprob is not None and logprob.decoded_token is not None:
            return logprob.decoded_token
        return self._io_processor.decode([token_id])

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """UTF-8 bytes that each token adds to the text; may be a part of a character, or empty."""
        if self._io_processor is None:
            return [b""] * len(token_ids)
        return self._io_processor.token_bytes(
            token_ids, skip_special_tokens=self._skip_special_tokens
        )

    def prompt(self, output: RequestOutput) -> str:
        """Return the text of a prompt, also for token ids."""
        if output.prompt is not None or self._io_processor is None:
            return output.prompt or ""
        return self._io_processor.decode(output.prompt_token_ids)

    def prompt_bytes(self, output: RequestOutput) -> Iterable[bytes]:
        """Bytes that each token of a prompt adds to its text; for a special token only if the text spells it out."""
        if self._io_processor is None:
            return [b""] * len(output.prompt_token_ids)
        token_ids = output.prompt_token_ids
        pieces = self._io_processor.token_bytes(token_ids)
        if output.prompt is None:
            return pieces
        unspecial = self._io_processor.token_bytes(token_ids, skip_special_tokens=True)
        return [
            piece if plain or piece.decode(errors="replace") in output.prompt else b""
            for piece, plain in zip(pieces, unspecial, strict=True)
        ]


class TextOffsets:
    """Offset of each token's text in the text of its completion, in characters.

    It is counted over the tokens' bytes, so it depends neither on text that is held back nor on the chunks of a stream.
    A token within a character has the offset of that character.
    """

    __slots__ = ("_count", "_decoder")

    def __init__(self) -> None:
        self._decoder = _new_decoder("replace")
        self._count = 0

    def advance(self, data: bytes) -> int:
        """Return the offset of the next token, which adds `data`."""
        is_continuation = data[:1] and 0x80 <= data[0] < 0xC0
        if data and not is_continuation:
            self._count += len(self._decoder.decode(b"", final=True))
            self._decoder.reset()
        offset = self._count
        self._count += len(self._decoder.decode(data))
        return offset

    def move_to(self, offset: int) -> None:
        """The next token begins at this offset."""
        self._decoder.reset()
        self._count = offset
