"""Compares the workers' data of a request with the request itself. Test process."""

from __future__ import annotations

from tenonry.messages import EngineCoreRequest
from tenonry.step import NewRow
from tenonry.transport.serial import to_plain
from tenonry_testkit.rules import OWN_FIELDS, expect


class RowChecker:
    """Fields of one request, copied before the scheduler receives it."""

    def __init__(self, source: EngineCoreRequest) -> None:
        self._prompt = source.prompt_token_ids.tolist()
        self._delivered = list(source.output_token_ids)
        self._fields = {
            "sampling": source.sampling_params,
            "stop_token_ids": tuple(source.stop_token_ids),
            "bad_words": tuple(source.bad_words),
            "adapter": source.adapter,
        }
        self._arrays = {name: to_plain(getattr(source, name)) for name in ("features", "media")}

    def check(self, new: NewRow) -> None:
        """Raise RuleBroken for a different row."""
        token_ids = new.token_ids.tolist()
        known = self._prompt + self._delivered
        self._expect("token_ids", token_ids[: len(known)], known)
        self._expect("num_output", new.num_output, len(token_ids) - len(self._prompt))
        for field, wanted in self._fields.items():
            self._expect(field, getattr(new, field), wanted)
        for field, wanted in self._arrays.items():
            self._expect(field, to_plain(getattr(new, field)), wanted)

    @staticmethod
    def _expect(field: str, found: object, wanted: object) -> None:
        expect(found == wanted, OWN_FIELDS, "{} is {!r:.80}, not {!r:.80}", field, found, wanted)
