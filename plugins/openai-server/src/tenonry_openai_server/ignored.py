"""Parts of a request that have no effect: named in the header `x-tenonry-ignored` of the response, counted, and logged
once per name. Front end, event loop.

Clients send fields of other servers, tools that only their vendor runs, and blocks that no chat template can show. The
rest of such a request is served, and the response names the ignored parts. Names come from clients, so their storage is
bounded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from urllib.parse import quote

from starlette.requests import Request

from tenonry_openai_server.errors import bad_request

logger = logging.getLogger("tenonry.server")

SCOPE_KEY = "tenonry.ignored"
HEADER = b"x-tenonry-ignored"
NO_SUCH_FIELD = "this request has no such field"
MAX_PARTS = 32  # of one request, named in its header
MAX_PART_CHARS = 96
MAX_HEADER_BYTES = 2048
MAX_LOGGED = 256  # different names in the log of one process
_INDEX = re.compile(r"\[\d+\]")


class Ignored:
    """Parts of one request that have no effect. `add` may be called by anything that reads the request."""

    __slots__ = ("_log", "_more", "_parts")

    def __init__(self, log: IgnoredLog) -> None:
        self._log = log
        self._parts: list[str] = []
        self._more = 0

    def add(self, part: str, reason: str = NO_SUCH_FIELD) -> None:
        """Report `part`, such as "tools[2] (web_search)", as ignored because of `reason`, a clause for the log.

        Raises APIError 400 if the operator has such requests rejected.
        """
        if self._log.refuses:
            shown = _shown(part)
            raise bad_request(f"{shown}: {reason}; leave it out", shown, "unknown_parameter")
        self.report(part, reason)

    def report(self, part: str, reason: str) -> None:
        """Report `part` as ignored, subject to its own setting rather than that for unknown fields."""
        shown = _shown(part)
        if shown in self._parts:
            return
        self._log.note(shown, reason)
        if len(self._parts) < MAX_PARTS:
            self._parts.append(shown)
        else:
            self._more += 1

    def report_to(self, log: IgnoredLog) -> None:
        """Count and log further parts elsewhere: with the model named by the request."""
        self._log = log

    def header(self) -> tuple[bytes, bytes] | None:
        """Return the response header, percent-encoded; None if every part of the request was used."""
        if not self._parts:
            return None
        value = ""
        more = self._more
        for place, part in enumerate(self._parts):
            text = (", " if value else "") + _encoded(part)
            if len(value) + len(text) > MAX_HEADER_BYTES:
                more += len(self._parts) - place
                break
            value += text
        if more:
            value += f", +{more} more"
        return HEADER, value.encode("ascii")


class IgnoredLog:
    """Counts and logs parts of requests that have no effect; one per process.

    `refuses`: such requests are rejected instead. `count` is called once for each part.
    """

    def __init__(self, count: Callable[[], None], *, refuses: bool) -> None:
        self.refuses = refuses
        self._count = count
        self._names: set[str] = set()

    def note(self, part: str, reason: str) -> None:
        """Count a part, and log it unless one of that name was logged before."""
        self._count()
        name = _INDEX.sub("[]", part)
        if name in self._names or len(self._names) >= MAX_LOGGED:
            return
        self._names.add(name)
        logger.warning("ignored %s in a request: %s (logged once)", _encoded(name), reason)
        if len(self._names) == MAX_LOGGED:
            logger.warning("ignored parts of requests: further names are counted, not logged")


def ignored(request: Request) -> Ignored:
    """Return the collector of ignored parts of an HTTP request."""
    found: Ignored = request.scope[SCOPE_KEY]
    return found


def _shown(part: str) -> str:
    if len(part) > MAX_PART_CHARS:
        return part[:MAX_PART_CHARS] + "..."
    return part or "(empty name)"


def _encoded(part: str) -> str:
    """Encode as ASCII without control characters and commas, which separate the parts."""
    return quote(part, safe=" ()[]/:_.-~'+=@")
