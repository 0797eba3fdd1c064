"""Contents of a folder's safetensors or GGUF files for a model, from headers alone, before memory is allocated.

Worker process.
"""

from __future__ import annotations

import logging
import math
import re
from typing import TYPE_CHECKING, Any

from tenonry.errors import ModelError
from tenonry_hf_hub import StoredTensor, check_present, find_weights, read_headers
from tenonry_torch_base.gguf import GGUF, gguf_slices
from tenonry_torch_base.oddities import check_float, folder_notes, names_by_pattern
from tenonry_torch_base.renaming import Renaming
from tenonry_torch_base.stored_matrices import PLAIN, MatrixSlice, StoredMatrices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from transformers import PreTrainedModel

    from tenonry_hf_hub import WeightFiles
    from tenonry_torch_base.quantisations import Quantisation

logger = logging.getLogger("tenonry.worker")

# Conversions on loading that preserve every element of a tensor and add none.
KEEPING_STEPS = {"MergeModulelist", "Concatenate", "Transpose"}
MAX_NAMES = 3
LAYER_NAME = re.compile(r"(?P<stack>.+?)\.(?P<number>\d+)\.(?P<rest>.+)")


class Checkpoint:
    """Stored tensors that have a counterpart in the model; those of omitted towers, for example, are excluded.

    `tensors`: checkpoint name → location. `targets`: checkpoint name → name in the model. `converters`: checkpoint name
    → the converter of transformers, for converted tensors. `absent`: missing or broken files of the index that the
    model does not need. `notes`: for the log, skipped files and reasons. `untied`: parameters whose stored values
    differ from those of the parameter that they are tied to.
    """

    def __init__(
        self, path: str | Path, model: PreTrainedModel, quantisation: Quantisation | None = None
    ) -> None:
        """`model` may be without storage; `quantisation` reads quantised weights. Raises ModelError as `read_headers`
        does for a file that holds one of its tensors, and when such a file is missing.
        """
        self.path = str(path)
        self.family = type(model).__name__
        self.tensors: dict[str, StoredTensor] = {}
        self.targets: dict[str, str] = {}
        self.converters: dict[str, Any] = {}
        self.matrices = None if quantisation is None else StoredMatrices(quantisation)
        self.notes: list[str] = list(folder_notes(path))
        self.untied: frozenset[str] = frozenset()
        self._unplaced: dict[str, tuple[str, str]] = {}  # checkpoint name → renamed, and its file
        renaming = Renaming(model)
        self._names = renaming.names
        weights = find_weights(path)
        weight_map = weights.weight_map
        if weights.note:
            self.notes.append(weights.note)
        check_present(path, weights, _placed(renaming, weights, weights.absent))
        stored = read_headers(
            weights, lambda file: weight_map is None or any(_placed(renaming, weights, (file,)))
        )
        readable = {tensor.file.name for tensor in stored.values()}
        absent = []
        for key, file in (weight_map or {}).items():
            if key in stored:
                continue
            if file not in readable:
                absent.append(file)
                self._unplaced[key] = (renaming.target(key)[0], file)
        self.absent = tuple(dict.fromkeys(absent))
        if self.matrices is not None:
            stored = self.matrices.gather(stored)
        for key, tensor in stored.items():
            name, converter = renaming.target(key)
            if name not in renaming.names:
                self._unplaced[key] = (name, tensor.file.name)
                continue
            if renaming.names[name].is_floating_point() and key not in self._parts:
                check_float(key, tensor, stored)
            self.tensors[key] = tensor
            self.targets[key] = name
            if converter is not None:
                self.converters[key] = converter

    @property
    def num_bytes(self) -> int:
        """Size of the tensors in their files."""
        return sum(tensor.num_bytes for tensor in self.pieces)

    @property
    def pieces(self) -> list[StoredTensor]:
        """Tensors read from the files: each tensor, and each part of a quantised matrix."""
        parts_of = self._parts
        found = [tensor for key, tensor in self.tensors.items() if key not in parts_of]
        for parts in parts_of.values():
            found += parts.values()
        return found

    @property
    def unplaced(self) -> frozenset[str]:
        """Names of stored tensors without a place in the model."""
        return frozenset(self._unplaced)

    @property
    def files(self) -> list[Path]:
        """The files that hold at least one of the tensors, in a fixed order."""
        return sorted({tensor.file for tensor in self.pieces})

    @property
    def _parts(self) -> dict[str, dict[str, StoredTensor]]:
        return {} if self.matrices is None else self.matrices.parts

    @property
    def features(self) -> dict[str, list[str]]:
        """Unusual properties of the files, for the facts about the model."""
        found = {"files_not_needed": list(self.absent), "notes": self.notes}
        return {name: each for name, each in found.items() if each}

    def is_quantised(self, key: str) -> bool:
        """Return True if the files hold the tensor as a quantised matrix."""
        return key in self._parts

    @property
    def is_gguf(self) -> bool:
        """True if the weights are in a GGUF file."""
        return any(file.suffix == GGUF for file in self.files)

    def slices(self, open_files: ExitStack) -> dict[str, Any]:
        """Checkpoint name → slice of its file, which reads the tensor when it is indexed with `...`."""
        from safetensors import safe_open

        if self.is_gguf:
            return self._gguf_slices()
        opened = {
            file: open_files.enter_context(safe_open(file, framework="pt")) for file in self.files
        }
        parts_of = self._parts
        found: dict[str, Any] = {}
        for key, tensor in self.tensors.items():
            if self.matrices is None or key not in parts_of:
                found[key] = opened[tensor.file].get_slice(key)
                continue
            prefix = key.rpartition(".")[0]
            slices = {
                ending: opened[part.file].get_slice(f"{prefix}.{ending}")
                for ending, part in parts_of[key].items()
            }
            found[key] = MatrixSlice(self.matrices, key, tensor.shape, slices)
        return found

    def _gguf_slices(self) -> dict[str, Any]:
        found: dict[str, Any] = dict(gguf_slices(self.files, self._parts))
        for key in self._parts:
            shape = self.tensors[key].shape
            found[key] = MatrixSlice(self.matrices, key, shape, {PLAIN: found[key]})
        return found

    def check(self, model: PreTrainedModel) -> None:
        """Raises ModelError, naming file and tensor, when a shape differs from the model's, or a weight is missing."""
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        self._check_shapes(shapes)
        self._check_counts(shapes)
        self._check_depth(model)
        missing = self.missing(model)
        if missing:
            names = ", ".join(missing[:MAX_NAMES]) + (", …" if len(missing) > MAX_NAMES else "")
            raise ModelError(
                f"the weights in {self.path} do not fit {self.family}: {len(missing)} of the tensors that config.json "
                f"asks for are in none of its files, such as {names}; download the model again, or correct config.json"
            )

    def _check_shapes(self, shapes: dict[str, tuple[int, ...]]) -> None:
        for key, tensor in self.tensors.items():
            wanted = shapes[self.targets[key]]
            if key not in self.converters and tensor.shape != wanted:
                raise ModelError(
                    f"the weights in {self.path} do not fit {self.family}: tensor {key} in {tensor.file.name} is "
                    f"{list(tensor.shape)}, config.json asks for {list(wanted)}; correct config.json, or download the "
                    "model again"
                )

    def _check_counts(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Compare the total elements of tensors that are joined on loading."""
        sources: dict[str, list[str]] = {}
        for key, converter in self.converters.items():
            steps = {type(step).__name__ for step in converter.operations}
            if steps <= KEEPING_STEPS and len(converter.target_patterns) == 1:
                sources.setdefault(self.targets[key], []).append(key)
        for name, keys in sources.items():
            stored = sum(math.prod(self.tensors[key].shape) for key in keys)
            if stored != math.prod(shapes[name]):
                first = self.tensors[keys[0]]
                raise ModelError(
                    f"the weights in {self.path} do not fit {self.family}: {name} {list(shapes[name])} is joined from "
                    f"{len(keys)} tensors with {stored} elements in all, such as {keys[0]} {list(first.shape)} in "
                    f"{first.file.name}; download the model again, or correct config.json"
                )

    def _check_depth(self, model: PreTrainedModel) -> None:
        """Check that no stack of layers is longer in the files: half a model would give wrong answers.

        Layers that only predict further tokens are stored after the others, and are not run.
        """
        from torch.nn import ModuleList

        ignored = [re.compile(text) for text in model._keys_to_ignore_on_load_unexpected or ()]  # noqa: SLF001
        stacks = {
            name: len(part) for name, part in model.named_modules() if isinstance(part, ModuleList)
        }
        ahead = _layers_ahead(model)
        for key, (name, file) in self._unplaced.items():
            found = LAYER_NAME.match(name)
            depth = stacks.get(found["stack"], 0) if found else 0
            if not depth or any(pattern.search(key) for pattern in ignored):
                continue
            number = int(found["number"])
            is_like_others = f"{found['stack']}.{depth - 1}.{found['rest']}" in self._names
            if number >= depth + ahead and is_like_others:
                raise ModelError(
                    f"the weights in {self.path} do not fit {self.family}: {file} has {key}, config.json "
                    f"asks for {depth} layers in {found['stack']}, 0 to {depth - 1}; correct config.json, or download "
                    "the model again"
                )

    def log(self) -> None:
        """Log skipped files, and stored tensors without a counterpart in the model."""
        for note in self.notes:
            logger.warning("%s: %s", self.path, note)
        if self._unplaced:
            logger.info(
                "%s: %d stored tensors are not used: %s",
                self.path,
                len(self._unplaced),
                names_by_pattern(self._unplaced),
            )

    def missing(self, model: PreTrainedModel) -> list[str]:
        """Parameters without a stored tensor, for themselves or an alias, that are not made on loading."""
        if any(len(converter.target_patterns) > 1 for converter in self.converters.values()):
            return []  # one tensor becomes several: transformers itself compares after loading
        stored = set(self.targets.values())
        same = _shared_names(model)
        ignored = [re.compile(text) for text in model._keys_to_ignore_on_load_missing or ()]  # noqa: SLF001
        return [
            name
            for name, _ in model.named_parameters()
            if not same[name] & stored and not any(found.search(name) for found in ignored)
        ]


def _placed(renaming: Renaming, weights: WeightFiles, files: Sequence[str]) -> Iterator[str]:
    """Tensors that the index assigns to `files` and that have a counterpart in the model."""
    for key, file in (weights.weight_map or {}).items():
        if file in files and renaming.target(key)[0] in renaming.names:
            yield key


def _layers_ahead(model: PreTrainedModel) -> int:
    """Number of multi-token prediction layers, by the configuration names of the families."""
    config = model.config.get_text_config()
    names = ("num_nextn_predict_layers", "num_mtp_layers")
    return max(int(getattr(config, name, None) or 0) for name in names)


def _shared_names(model: PreTrainedModel) -> dict[str, set[str]]:
    """Each parameter's name → all names of that weight: modules may share it, and transformers may tie it."""
    by_weight: dict[int, set[str]] = {}
    same = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        same[name] = by_weight.setdefault(id(weight), set())
        same[name].add(name)
    for target, source in model.all_tied_weights_keys.items():
        if target in same and source in same:
            joined = same[target] | same[source]
            for name in joined:
                same[name] = joined
    return same
