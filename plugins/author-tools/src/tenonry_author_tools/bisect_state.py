"""State of a search for distributions whose plugins break a start: what is tested next, and what follows from it.

The search tests no plugins of others first, then all, then the first ones of the list in halves: the last of the
shortest list that fails is needed for the fault. The same search with that one kept active finds the next that is
needed, until those found fail alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tenonry.errors import ConfigError

STATE_FILE = Path("tenonry-bisect.json")  # in the current folder


class BisectState(msgspec.Struct, frozen=True, kw_only=True):
    """`names`: distributions under test, besides those that stay active. `tested`: active ones of the current test.

    `found`: those that the fault needs. With them and the first `good` names the start works, with the first `bad` it
    fails (None: not known yet). `verdict`: set once the search has ended, with the culprits in `found`.
    """

    names: tuple[str, ...]
    tested: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    good: int = 0
    bad: int | None = None
    verdict: str = ""

    @property
    def num_suspects(self) -> int:
        """Distributions that may be the next that the fault needs."""
        return (len(self.names) if self.bad is None else self.bad) - self.good

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
            return self._with(verdict=ELSEWHERE) if is_bad else self._with(tested=self.names)
        if self.bad is None:
            if not is_bad:
                return self._with(verdict=NONE)
            return self._with(bad=len(self.names)).narrowed()
        if self.tested == self.found:
            return self.ended() if is_bad else self.narrowed()
        middle = len(self.tested) - len(self.found)
        return self._with(**{"bad" if is_bad else "good": middle}).narrowed()

    def narrowed(self) -> BisectState:
        """Choose the next test; the last name of the shortest bad list joins those found."""
        bad = self.bad or 0
        if bad - self.good > 1:
            return self._with(tested=self.names[: (self.good + bad) // 2] + self.found)
        found = (self.names[bad - 1], *self.found)
        state = self._with(found=found, tested=found, good=0, bad=bad - 1)
        return state.ended() if bad == 1 else state  # nothing else was active

    def ended(self) -> BisectState:
        """The state with the verdict about those found."""
        if self.found[1:]:
            names = ", ".join(self.found)
            text = f"{names} break the start together: it fails with these alone, and needs each"
            return self._with(verdict=text)
        text = f"{self.found[0]} breaks the start: it fails with it alone, and works without any"
        return self._with(verdict=text)

    def _with(self, **changes: Any) -> BisectState:
        return msgspec.structs.replace(self, **changes)


ELSEWHERE = (
    "the start fails without plugins of others, too: look at tenonry itself and at the settings, which may name "
    "a plugin that is left out (--keep DISTRIBUTION)"
)
NONE = "the start works with all of them: none is at fault"


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
