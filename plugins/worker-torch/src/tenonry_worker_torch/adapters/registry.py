"""Adapters of one rank: loaded and removed between steps, with slots assigned by step. Worker process."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry.errors import ConfigError, ModelError, RequestError
from tenonry_worker_torch.adapters.batch import StepAdapters
from tenonry_worker_torch.adapters.folder import AdapterFolder, name_and_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tenonry_worker_torch.adapters.linear import LowRank
    from tenonry_worker_torch.adapters.targets import LoraTargets

logger = logging.getLogger("tenonry.worker")

NONE = -1  # a row without an adapter
MAX_NAME_CHARS = 128


@dataclass(eq=False, slots=True)
class LoadedAdapter:
    """The weights of this rank by layer, in main memory; one under several names. `slot`: their slot for steps, −1 if
    none.

    `number`: the mark of its rows; running rows keep the number of a removed adapter.
    """

    digest: str
    number: int
    weights: dict[str, tuple[torch.Tensor, torch.Tensor]]
    slot: int = NONE
    last_step: int = 0
    is_pinned: bool = False
    rows: set[int] = field(default_factory=set)


class Adapters:
    """Adapters of one rank. `step` is read by the layers of its model.

    Adapters outlive the model: a model with other weights of the same shapes can be bound later. `max_kept`: maximum
    number of different named adapters, None for no limit; an unnamed one is kept until its last row ends.
    `model_names`: names of the model itself, reserved.
    """

    def __init__(
        self,
        targets: LoraTargets,
        max_loras: int,
        max_rank: int,
        max_kept: int | None = None,
        model_names: Sequence[str] = (),
    ) -> None:
        self.targets = targets
        self._model_names = frozenset(model_names)
        self._max_kept = max_kept
        self.max_loras = max_loras
        self.max_rank = max_rank
        self.step = StepAdapters()
        self.layers: list[LowRank] = []
        self._by_name: dict[str, LoadedAdapter] = {}
        self._by_number: dict[int, LoadedAdapter] = {}
        self._slots: list[LoadedAdapter | None] = [None] * max_loras
        self._numbers = 0
        self._num_steps = 0
        self._orphans: dict[int, str] = {}  # rows whose adapter is not here → digest
        self.is_on_host = True

    # ------------------------------------------------------------------ the model
    def unbind(self) -> None:
        """Unbind the model."""
        self.vacate()
        self.layers = []

    def vacate(self) -> None:
        """Free the slots. Their contents are in main memory as well, and return with the next step that needs them."""
        self.step.clear()
        for layer in self.layers:
            layer.clear()
        self._slots = [None] * self.max_loras
        for adapter in self._by_number.values():
            adapter.slot = NONE

    def bind(self, targets: LoraTargets) -> None:
        """Bind a model that is being loaded; its layers follow when it is optimised."""
        self.unbind()
        self.targets = targets

    def check(self) -> None:
        """Raise ModelError if the model lacks a layer of an adapter that it had when the adapter was loaded."""
        for text in self.names():
            name = text.rpartition("@")[0]
            lacking = sorted(self._by_name[name].weights.keys() - self.targets.by_name.keys())
            if lacking:
                raise ModelError(
                    f"adapter {name!r} adds to {lacking[0]}, which the model with its new weights does not run as a "
                    "layer of its own; unload the adapter first"
                )

    # ------------------------------------------------------------------ between steps
    def add(self, name: str, path: str) -> bool:
        """Load the adapter in a folder, replacing one of the same name with other content.

        Raises ModelError, without a change, for an unsupported one.
        """
        if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise ModelError(
                f"the name of an adapter must have 1 to {MAX_NAME_CHARS} printable characters, not {name!r:.64}"
            )
        if name in self._model_names:
            raise ModelError(
                f"{name!r:.64} is a name of the model itself, and requests choose by name; give the adapter another one"
            )
        folder = AdapterFolder(path, self.targets, self.max_rank)
        if folder.digest in self._orphans.values():
            raise ModelError(
                f"a request from before the removal of adapter '{name}' still runs; try again when it has ended"
            )
        known = self._by_name.get(name)
        if known is not None and known.digest == folder.digest:
            return True
        made = self._running(folder.digest)
        self._check_room(name, made)
        if made is None:
            made = LoadedAdapter(folder.digest, self._numbers + 1, folder.read())
            self._numbers = made.number
        if known is not None:
            self.remove(name)
        self._by_name[name] = made
        self._by_number[made.number] = made
        logger.info(
            "Loaded adapter %s (%s): %d layers, rank %d",
            name,
            folder.digest,
            len(made.weights),
            folder.rank,
        )
        return True

    def _check_room(self, name: str, adapter: LoadedAdapter | None) -> None:
        """Raise ModelError if another adapter would exceed the limit. `adapter`: the one to name, if loaded."""
        if self._max_kept is None:
            return
        named = {each.number: other for other, each in self._by_name.items() if other != name}
        if len(named) < self._max_kept or (adapter is not None and adapter.number in named):
            return
        raise ModelError(
            f"max_cpu_loras={self._max_kept} adapters are in main memory: {sorted(named.values())}; unload one, or "
            "start with a larger --worker-option max_cpu_loras"
        )

    def _running(self, digest: str) -> LoadedAdapter | None:
        """One of that content, under another name or removed with rows that still run: a step counts it once."""
        held = (each for each in self._by_number.values() if each.digest == digest)
        return next(held, None)

    def add_all(self, modules: Sequence[str]) -> None:
        """Load the adapters of a setting, see `name_and_path`. Raises ConfigError for another form, ModelError with the
        name.
        """
        for text in modules:
            name, path = name_and_path(text)
            if name in self._by_name:
                raise ConfigError(
                    f"lora_modules names {name!r} twice; give each adapter a name of its own"
                )
            try:
                self.add(name, path)
            except ModelError as error:
                raise ModelError(f"adapter {name!r}: {error}") from None

    def remove(self, name: str) -> bool:
        """Remove an adapter for new rows; running rows keep it. Raises RequestError for an unknown one."""
        adapter = self._known(name)
        del self._by_name[name]
        if not self._is_named(adapter):
            adapter.is_pinned = False
        self._forget_unused(adapter)
        return True

    def names(self) -> list[str]:
        """`name@digest` of each, in the order they were loaded."""
        return [f"{name}@{adapter.digest}" for name, adapter in self._by_name.items()]

    def pin(self, name: str) -> bool:
        """Pin an adapter: its slot is evicted last. Raises RequestError for an unknown one."""
        self._known(name).is_pinned = True
        return True

    def _known(self, name: str) -> LoadedAdapter:
        adapter = self._by_name.get(name)
        if adapter is None:
            raise RequestError(
                f"the adapter '{name}' is not loaded; there are {sorted(self._by_name) or 'none'}",
                "lora_name",
            )
        return adapter

    def _is_named(self, adapter: LoadedAdapter) -> bool:
        return any(each is adapter for each in self._by_name.values())

    def _forget_unused(self, adapter: LoadedAdapter) -> None:
        """Free the weights of a removed adapter without rows."""
        if adapter.rows or self._is_named(adapter):
            return
        self._by_number.pop(adapter.number, None)
        if adapter.slot != NONE:
            self._slots[adapter.slot] = None

    # ------------------------------------------------------------------ in a step
    def hold(self, row: int, digest: str) -> int:
        """Keep the adapter with this content while a row uses it; returns its number, NONE if it is missing."""
        adapter = self._running(digest)
        if adapter is None:
            self._orphans[row] = digest
            return NONE
        adapter.rows.add(row)
        return adapter.number

    def drop(self, row: int, number: int) -> None:
        """Release a row's adapter by its number, which may be NONE."""
        self._orphans.pop(row, None)
        if number != NONE:
            adapter = self._by_number[number]
            adapter.rows.discard(row)
            self._forget_unused(adapter)

    def slots_of(self, numbers: Sequence[int]) -> NDArray[np.int32]:
        """Assign slots to the adapters of a step; returns slots by number, NONE at the last place, for rows without."""
        self._num_steps += 1
        running = [self._by_number[number] for number in numbers]
        for adapter in running:
            adapter.last_step = self._num_steps
        for adapter in running:
            self._give_slot(adapter)
        slots = np.full(self._numbers + 2, NONE, np.int32)
        for adapter in running:
            slots[adapter.number] = adapter.slot
        return slots

    def _give_slot(self, adapter: LoadedAdapter) -> None:
        """Assign a free slot, or that of the least recently used adapter; pinned ones come last."""
        if adapter.slot != NONE:
            return
        slot = min(range(self.max_loras), key=self._age_of)
        former = self._slots[slot]
        if former is not None and former.last_step == self._num_steps:
            raise RuntimeError(
                f"the step has rows of more adapters than max_loras={self.max_loras}, which the scheduler must not do"
            )
        if former is not None:
            former.slot = NONE
        adapter.slot = slot
        self._slots[slot] = adapter
        weights = [None if held is None else held.weights for held in self._slots]
        for layer in self.layers:
            layer.put(weights, slot)

    def _age_of(self, slot: int) -> tuple[int, bool, int]:
        """Sort key of a slot; the smallest one is evicted first."""
        held = self._slots[slot]
        if held is None:
            return 0, False, slot
        in_use = held.last_step == self._num_steps
        return 1 + in_use, held.is_pinned, held.last_step
