"""Requests that may have crashed their engine: those running during two consecutive crashes. Front end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tenonry.interfaces.recovery import OpenStream
from tenonry.messages import EngineCoreRequest

# A dead engine computed some tokens that nobody got. A request that has had more new ones since its last crash
# has passed the place where that one happened.
MARGIN = 8
CRASHES = 2


@dataclass(slots=True, eq=False)
class Lost:
    """Requests of one stream that a dead engine ran, or would have run."""

    stream: OpenStream
    requests: list[EngineCoreRequest] = field(default_factory=list)
    is_known_to_run: bool = False

    @property
    def num_tokens(self) -> int:
        """Number of computed tokens, as far as it is known."""
        if not self.is_known_to_run:
            return 0
        return sum(
            len(request.prompt_token_ids) + len(request.output_token_ids)
            for request in self.requests
        )


class _Crashes(NamedTuple):
    """Those in a row, and the tokens of the stream at the last one."""

    handle: int
    num_crashes: int
    num_generated: int


class CrashAttribution:
    """Counts consecutive crashes. `max_num_seqs`: concurrent requests of an engine."""

    def __init__(self, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self._crashes: dict[str, _Crashes] = {}  # by request id

    def crashed(
        self, lost: Sequence[Lost], is_open: Callable[[str], object], *, has_stepped: bool
    ) -> set[str]:
        """An engine died that ran some of these, if it has stepped; returns the ids of those that are suspects now."""
        self._crashes = {each: past for each, past in self._crashes.items() if is_open(each)}
        suspects = set()
        for each in self._running(lost):
            stream = each.stream
            name = stream.request_id
            handle = stream.request.handle
            past = self._crashes.get(name)
            count = int(has_stepped)
            if past is not None and past.handle == handle:  # else it was another one of this id
                if stream.num_generated <= past.num_generated + MARGIN:
                    count += past.num_crashes
            self._crashes[name] = _Crashes(handle, count, stream.num_generated)
            if count >= CRASHES:
                suspects.add(name)
        return suspects

    def _running(self, lost: Sequence[Lost]) -> Iterable[Lost]:
        """The first step of a request may be its last: the next ones in the queue may have run as well."""
        running = [each for each in lost if each.is_known_to_run]
        queued = [each for each in lost if not each.is_known_to_run]
        queued.sort(key=_place)
        num_left = max(0, self.max_num_seqs - len(running))
        return [*running, *queued[:num_left]]


def _place(lost: Lost) -> tuple[int, int]:
    request = lost.stream.request
    return request.priority, request.handle
