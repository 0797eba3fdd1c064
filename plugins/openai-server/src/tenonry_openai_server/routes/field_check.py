"""Field checks of route plugins, by the server's rules. Front end, event loop."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from tenonry_openai_server.errors import bad_request
from tenonry_openai_server.ignored import NO_SUCH_FIELD, Ignored
from tenonry_openai_server.protocol.fields import (
    CACHE_HINTS,
    HARMLESS,
    HARMLESS_VALUES,
    UNSUPPORTED,
)
from tenonry_openai_server.protocol.names import MAX_UNKNOWN, FieldRules

_INDEX = re.compile(r"\.\d+(?=\.|$)")
_NOTHING: Mapping[str, str] = {}
_NO_VALUES: Mapping[str, tuple[Any, ...]] = {}


class FieldCheck:
    """The fields of one request: unused ones are rejected, or ignored and reported."""

    __slots__ = ("_ignored", "_reported")

    def __init__(self, ignored: Ignored) -> None:
        self._ignored = ignored
        self._reported: set[str] = set()

    def body(
        self,
        value: Any,
        known: Collection[str],
        refused: Mapping[str, str] = _NOTHING,
        nothing: Mapping[str, tuple[Any, ...]] = _NO_VALUES,
    ) -> None:
        """Check the fields of a whole body, of which `known` are read. Raises an error that the server answers with
        400.

        `refused`: further names that would change an answer → reason of the rejection; `nothing`: name → values without
        effect. Accounting fields are accepted.
        """
        rules = FieldRules(
            known, {**UNSUPPORTED, **refused}, HARMLESS, {**HARMLESS_VALUES, **nothing}
        )
        self._check(value, rules, "")

    def object(
        self, value: Any, known: Collection[str], under: str, refused: Mapping[str, str] = _NOTHING
    ) -> None:
        """The same for an object in it, at the path `under`, such as "tools.0"; other values pass."""
        self._check(value, FieldRules(known, refused, CACHE_HINTS), under)

    def ignore(self, part: str, reason: str = NO_SUCH_FIELD) -> None:
        """Report a part that has no effect, such as "tools[2] (web_search)", and why, as a clause."""
        self._ignored.add(part, reason)

    def _check(self, value: Any, rules: FieldRules, under: str) -> None:
        if not isinstance(value, dict):
            return
        for name, entry in value.items():
            if name in rules.known:
                continue
            shown = _INDEX.sub("[]", f"{under}.{name}") if under else name
            if shown not in self._reported and rules.judge(name, entry, under):
                self._report(shown)

    def _report(self, shown: str) -> None:
        if len(self._reported) >= MAX_UNKNOWN:
            raise bad_request(
                f"the body has more than {MAX_UNKNOWN} fields that this request does not have",
                code="unknown_parameter",
            )
        self._reported.add(shown)
        self._ignored.add(shown)
