"""New values for some or all weights of a model, checked against it by headers alone. Worker process."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from tenonry.errors import ModelError
from tenonry_torch_base.renaming import Renaming
from tenonry_torch_base.weight_source import StoredSlice, read_source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from tenonry_hf_hub import StoredTensor
    from tenonry_worker_torch.loading.load import CheckpointInfo


class WeightUpdate:
    """The tensors of a source, under the checkpoint's own names, and where the model has them.

    `tensors`, `targets`, `converters` and `untied` are as in `tenonry_torch_base.checkpoint.Checkpoint`.
    """

    untied: frozenset[str] = frozenset()

    def __init__(self, source: str, names: Sequence[str] | None, found: CheckpointInfo) -> None:
        """Raises ModelError naming the tensor when one of them does not fit: before anything has changed."""
        self.source = source
        self.family = type(found.whole).__name__
        self.tensors: dict[str, StoredTensor] = {}
        self.targets: dict[str, str] = {}
        self.converters: dict[str, Any] = {}
        renaming = Renaming(found.whole)
        self._shapes = {name: tuple(value.shape) for name, value in renaming.names.items()}
        self._stored: dict[str, StoredTensor] = {}
        if found.checkpoint is not None:
            self._stored = found.checkpoint.tensors
        for key, tensor in read_source(source, names).items():
            self._add(key, tensor, renaming, found, is_asked_for=names is not None)
        self._check_shapes()
        self._check_joined(found)
        self._check_ties(dict(found.whole.all_tied_weights_keys))

    def _add(
        self,
        key: str,
        tensor: StoredTensor,
        renaming: Renaming,
        found: CheckpointInfo,
        *,
        is_asked_for: bool,
    ) -> None:
        name, converter = renaming.target(key)
        if name in renaming.names:
            self.tensors[key] = tensor
            self.targets[key] = name
            if converter is not None:
                self.converters[key] = converter
            return
        if is_asked_for or not _is_passed_over(key, found):
            raise ModelError(
                f"{tensor.file} holds {key}, for which {self.family} has no place; leave it out, or list the names to "
                "take"
            )

    def _check_shapes(self) -> None:
        if not self.tensors:
            raise ModelError(f"{self.source} holds no tensor of {self.family}")
        for key, tensor in self.tensors.items():
            stored = self._stored.get(key)
            wanted = self._shapes[self.targets[key]]
            if stored is not None:
                wanted = stored.shape
            elif key in self.converters:
                continue
            if tensor.shape != wanted:
                raise ModelError(
                    f"{tensor.file}: tensor {key} is {list(tensor.shape)}, and {self.family} has {list(wanted)}"
                )

    def _check_joined(self, found: CheckpointInfo) -> None:
        """Check that tensors joined on loading are updated together."""
        for name in {self.targets[key] for key in self.converters}:
            here = {key for key, target in self.targets.items() if target == name}
            if found.checkpoint is not None:
                there = {key for key, other in found.checkpoint.targets.items() if other == name}
                lacking = sorted(there - here)
                if lacking:
                    raise ModelError(
                        f"{self.source} brings {len(here)} of the {len(there)} tensors that make {name}, and not "
                        f"{lacking[0]}; bring all of them"
                    )
                continue
            count = sum(math.prod(self.tensors[key].shape) for key in here)
            if count != math.prod(self._shapes[name]):
                raise ModelError(
                    f"{self.source} brings {count} elements for {name} {list(self._shapes[name])}; bring all of it"
                )

    def _check_ties(self, tied: dict[str, str]) -> None:
        """Check that a tied weight has no separate value."""
        brought = set(self.targets.values())
        for key, name in self.targets.items():
            source = tied.get(name)
            if source is not None and source not in brought:
                raise ModelError(
                    f"{key} of {self.family} is the weight {source}; bring that one, alone or as well"
                )

    @property
    def names(self) -> set[str]:
        """Parameters of the model with new values."""
        return set(self.targets.values())

    def slices(self, _open_files: ExitStack) -> dict[str, StoredSlice]:
        """Checkpoint name → slice of its file."""
        return {key: StoredSlice(key, tensor) for key, tensor in self.tensors.items()}


def _is_passed_over(key: str, found: CheckpointInfo) -> bool:
    """Return True if the model's own files hold such a tensor, or may, and loading ignores it."""
    whole = found.whole
    patterns = whole._keys_to_ignore_on_load_unexpected or ()  # noqa: SLF001 - it has no public name
    if any(re.search(pattern, key) for pattern in patterns):
        return True
    return found.checkpoint is not None and key in found.checkpoint.unplaced
