"""State of a search for the distribution whose plugins break a start: what is tested next, and what follows from it.

The search tests no plugins of others first, then halves of the suspects, and the last one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tenonry.errors import ConfigError

STATE_FILE = Path("tenonry-bisect.json")  # in the current folder


class BisectState(msgspec.Struct, frozen=True, kw_only=True):
    """`names`: distributions under test, besides those that stay active. `suspects`: those not cleared yet.

    `tested`: active ones of the current test. `verdict`: set once the search has ended; `culprit`, where it found one.
    """

    names: tuple[str, ...]
    suspects: tuple[str, ...]
    tested: tuple[str, ...] = ()
    verdict: str = ""
    culprit: str = ""

    def left_out(self) -> list[str]:
        """Distributions that the current test excludes."""
        return [name for name in self.names if name not in self.tested]

    def describe(self) -> str:
        """Condition of the current test, in one line."""
        return f"with {_listed(self.tested)}, without {_listed(self.left_out())}"

    def next(self, *, is_bad: bool) -> BisectState:
        """The state after the current test: a bad start shows the fault. Raises ConfigError after the verdict."""
        if self.verdict:
            raise ConfigError(f"the search has ended: {self.verdict}; `tenonry bisect reset`")
        if not self.tested:
            return self._ended(ELSEWHERE) if is_bad else self._narrowed(self.suspects)
        if not is_bad:
            left = tuple(name for name in self.suspects if name not in self.tested)
            return self._narrowed(left) if left else self._ended(NOT_ALONE)
        if len(self.tested) > 1:
            return self._narrowed(self.tested)
        (culprit,) = self.tested
        text = f"{culprit} breaks the start: it fails with it alone, and works without any"
        return msgspec.structs.replace(self._ended(text), culprit=culprit)

    def _narrowed(self, suspects: Sequence[str]) -> BisectState:
        half = tuple(suspects[: (len(suspects) + 1) // 2])
        return msgspec.structs.replace(self, suspects=tuple(suspects), tested=half)

    def _ended(self, verdict: str) -> BisectState:
        return msgspec.structs.replace(self, verdict=verdict)


ELSEWHERE = (
    "the start fails without plugins of others, too: look at tenonry itself and at the settings, which may name "
    "a plugin that is left out (--keep DISTRIBUTION)"
)
NOT_ALONE = "no distribution breaks the start alone: it takes several of them, or none is at fault"


def read_state() -> BisectState:
    """Raises ConfigError if no search has begun in this folder."""
    try:
        return msgspec.json.decode(STATE_FILE.read_bytes(), type=BisectState)
    except FileNotFoundError:
        raise ConfigError(
            f"no search has begun in this folder ({STATE_FILE}): tenonry bisect start"
        ) from None
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{STATE_FILE} cannot be read: {error}; remove it: tenonry bisect reset"
        ) from error


def write_state(state: BisectState) -> None:
    """Write the state file of this folder."""
    STATE_FILE.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
