"""The engine half of `operations`: sleep, weights, profiles and saving of one engine. Wherever the engine runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tenonry.errors import ConfigError, Unsupported
from tenonry.interfaces.call_set import Engine

PAUSED = "it is paused; resume it first"
ASLEEP = "it sleeps; wake it up first"
BROKEN = "its weights are those of an update that failed; bring a good one"
MAX_VERSION = 256
VERSION = re.compile(r"[\x21-\x7e]+")


class EngineOperations:
    """A call that the worker does not declare raises Unsupported with what it declares."""

    def __init__(self, core: Engine, *, refuses_asleep: bool = False) -> None:
        """`refuses_asleep`: requests that come while the engine sleeps are rejected; otherwise they wait."""
        self._core = core
        self._refuses_asleep = refuses_asleep
        self._initial_version = core.weight_version
        self._is_paused = False
        self._is_asleep = False
        self._is_broken = False

    # ------------------------------------------------------------------ holding
    def hold(self) -> None:
        """Step no more until `release`; requests keep their place and what was computed for them."""
        self._core.collect_all()
        self._is_paused = True
        self._apply()

    def release(self) -> None:
        """End `hold`. Requests resume unless the engine sleeps, or its weights are broken."""
        self._is_paused = False
        self._apply()

    def is_held(self) -> bool:
        """Return True while `hold` is in effect."""
        return self._is_paused

    def is_stepping(self) -> bool:
        """Return True while engines in lockstep still step: those without held requests have dummy steps to finish."""
        return self._core.steps_together

    def _apply(self) -> None:
        core = self._core
        core.held = ""
        core.refusal = ""
        core.is_away = self._is_asleep
        if self._is_paused:
            core.held = PAUSED
        if self._is_asleep:
            core.held = ASLEEP
        if self._is_broken:
            core.held = BROKEN
        if self._is_broken or (self._is_asleep and self._refuses_asleep):
            core.refusal = f"the engine takes no requests: {core.held}"

    # ------------------------------------------------------------------ sleep
    def sleep(self, level: int = 1) -> None:
        """Release memory until `wake_up`; running requests are recomputed afterwards."""
        _require(self._core, "sleep", "sleep")
        self._forget_computed()
        was_asleep = self._is_asleep
        self._is_asleep = True
        self._apply()
        try:
            self._core.call_workers("sleep", [level])
        except Exception:
            self._is_asleep = was_asleep or self.is_sleeping()
            self._apply()
            raise
        if level == 2:  # what wakes up is read from the checkpoint
            self._core.weight_version = self._initial_version
            self._is_broken = False
            self._apply()

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Reallocate memory. Steps resume when all ranks have all they need."""
        call_optional(self._core, "sleep", "wake_up", tags)
        self._is_asleep = self.is_sleeping()
        self._apply()

    def is_sleeping(self) -> bool:
        """Return True if any rank sleeps; False if workers cannot sleep."""
        core = self._core
        return "sleep" in core.executor.capabilities and any(core.call_workers("is_sleeping"))

    # ------------------------------------------------------------------ weights
    def check_update(
        self, source: str, names: Sequence[str] | None = None, version: str = ""
    ) -> None:
        """Raise errors of an update that are detectable before any change."""
        if len(version) > MAX_VERSION or (version and not VERSION.fullmatch(version)):
            raise ConfigError(
                f"version {version[:80]!r}: at most {MAX_VERSION} printable characters without spaces"
            )
        call_optional(self._core, "weights", "check_update", source, names)

    def update_weights(
        self, source: str, names: Sequence[str] | None = None, version: str = ""
    ) -> None:
        """Replace weights on every rank; what was computed with the former ones is forgotten.

        What `check_update` finds changes nothing. A failure after it leaves an engine that refuses requests and steps
        no more, until an update succeeds or level 2 of sleep ends.
        """
        self.check_update(source, names, version)
        self._forget_computed()
        self._is_broken = True
        self._apply()
        self._core.call_workers("update_weights", [source, names])
        self._is_broken = False
        self._core.weight_version = version
        self._apply()

    def _forget_computed(self) -> None:
        """Prefix cache, what running requests have in it, and the connector's store. Raises Unsupported."""
        core = self._core
        done = core.reset_prefix_cache(True)
        if core.kv_connector is not None:
            done = core.kv_connector.reset() and done
        if not done:
            raise Unsupported(
                "KV blocks are still in use by a transfer, so that nothing was changed; try again when it is done"
            )

    # ------------------------------------------------------------------ profiles and saving
    def start_profile(self) -> None:
        call_optional(self._core, "profile", "profile", True)

    def stop_profile(self) -> None:
        call_optional(self._core, "profile", "profile", False)

    def execute_dummy_batch(self) -> None:
        """Step without requests, as engines in lockstep do."""
        call_optional(self._core, "dummy_batch", "execute_dummy_batch")

    def save_sharded_state(
        self, path: str, pattern: str | None = None, max_size: int | None = None
    ) -> None:
        """The first engine does it: all have the same weights."""
        if self._core.index == 0:
            call_optional(self._core, "save", "save_sharded_state", path, pattern, max_size)


def call_optional(core: Engine, capability: str, method: str, *args: Any) -> list[Any]:
    """Call a method of the workers that belongs to a capability, on every rank. Raises Unsupported without it."""
    _require(core, capability, method)
    return core.call_workers(method, args)


def _require(core: Engine, capability: str, method: str) -> None:
    declared = core.executor.capabilities
    if capability not in declared:
        worker = core.plan.get("worker").name
        raise Unsupported(
            f"worker '{worker}' does not support '{method}'; it declares {sorted(declared) or 'nothing'}"
        )
