"""A peft folder: its files, the layers of their tensors, and a digest of everything. Worker process.

Everything is checked against the model from headers alone, before a tensor is read or anything changes.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tenonry.errors import ConfigError, ModelError
from tenonry_hf_hub import read_headers, read_json
from tenonry_hf_hub.weights import WeightFiles
from tenonry_worker_torch.adapters.options import CONFIG_FILE, LoraOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from tenonry_hf_hub import StoredTensor
    from tenonry_worker_torch.adapters.targets import LoraTargets, Place

WEIGHT_FILE = "adapter_model.safetensors"
PICKLED = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
TENSOR_NAME = re.compile(
    r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight"
)
DTYPES = ("F64", "F32", "F16", "BF16")
DIGEST_CHARS = 32
CHUNK_BYTES = 1 << 20


class Pair(NamedTuple):
    """The adapter's matrices for one layer: names of its tensors, rank and scale."""

    place: Place
    down: str
    up: str
    rank: int
    scale: float


class LoraModule(msgspec.Struct, forbid_unknown_fields=True):
    """An adapter of a setting. `base_model_name`: as in vLLM, ignored, since there is one model."""

    name: str
    path: str
    base_model_name: str | None = None


class AdapterFolder:
    """A checked folder. Raises ModelError, in one sentence, for an unsupported one."""

    def __init__(self, path: str, targets: LoraTargets, max_rank: int) -> None:
        folder = checked_folder(path)
        config = _file(folder, CONFIG_FILE)
        weights = _file(folder, WEIGHT_FILE)
        self._files = (config, weights)
        options = LoraOptions(read_json(config), targets.architecture)
        stored = read_headers(WeightFiles((weights,), None))
        _check_end(weights, stored)
        self.digest = digest_of(config, weights)
        self.pairs = _pairs(stored, options, targets, max_rank)

    @property
    def rank(self) -> int:
        """The largest rank of a layer."""
        return max(pair.rank for pair in self.pairs)

    def read(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Layer → [rank, in] and [out, rank], the second one scaled: this rank's part.

        Raises ModelError for values that are not finite, and for a file that changed since it was checked.
        """
        from safetensors.torch import load

        config, weights = self._files
        data = weights.read_bytes()
        tensors = load(data)
        if digest_of(config, weights) != self.digest:
            raise ModelError(f"{weights} changed while it was read; load the adapter again")
        found = {}
        for pair in self.pairs:
            down = tensors[pair.down]
            up = tensors[pair.up]
            for name in (pair.down, pair.up):
                if not tensors[name].isfinite().all():
                    raise ModelError(f"tensor {name} holds a value that is not finite")
            scaled = (up.double() * pair.scale).float()
            found[pair.place.name] = pair.place.cut(down, scaled)
        return found


def name_and_path(text: str) -> tuple[str, str]:
    """Parse an entry of `lora_modules`: NAME=PATH, or an object in JSON with name and path. Raises ConfigError."""
    if not text.lstrip().startswith("{"):
        name, _, path = text.partition("=")
        if not path:
            raise ConfigError(f"lora_modules={text!r:.256} must be NAME=PATH")
        return name, path
    try:
        found = msgspec.json.decode(text, type=LoraModule)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f'lora_modules={text!r:.256}: {error}; give {{"name": "NAME", "path": "PATH"}}'
        ) from None
    return found.name, found.path


def checked_folder(path: str) -> Path:
    """Return the folder of an adapter. Raises ModelError for a missing one, or a path outside the parent."""
    folder = Path(path)
    if ".." in folder.parts:
        raise ModelError(f"{path!r:.256} climbs with '..'; give the path of the folder itself")
    if not folder.is_dir():
        raise ModelError(f"{path!r:.256} is no folder; give one that peft saved")
    return folder


def _file(folder: Path, name: str) -> Path:
    """A plain file of the folder that lies inside it."""
    file = folder / name
    if not file.exists():
        if name == WEIGHT_FILE:
            for pickled in PICKLED:
                if (folder / pickled).exists():
                    raise ModelError(
                        f"{pickled} can run code when it is read, so only safetensors are loaded; save the adapter "
                        "again with peft's save_pretrained(safe_serialization=True)"
                    )
        raise ModelError(f"{folder} holds no {name}; give a folder that peft saved")
    if file.resolve().parent != folder.resolve():
        raise ModelError(f"{file} is a link out of the folder; copy the file into it")
    if not file.is_file():
        raise ModelError(f"{file} is not a plain file")
    return file


def _check_end(weights: Path, stored: Mapping[str, StoredTensor]) -> None:
    """Raise ModelError if a file is longer than its tensors: all of it would be read into memory."""
    end = max((tensor.end for tensor in stored.values()), default=0)
    there = weights.stat().st_size
    if stored and there > end:
        raise ModelError(
            f"{weights} has {there} bytes, and its tensors end at byte {end}; save the adapter again"
        )


def _pairs(
    stored: Mapping[str, StoredTensor], options: LoraOptions, targets: LoraTargets, max_rank: int
) -> list[Pair]:
    """Return all pairs of tensors. Raises ModelError with the name of an unused one."""
    sides: dict[str, dict[str, str]] = {}
    for name, tensor in stored.items():
        matched = TENSOR_NAME.fullmatch(name)
        if matched is None:
            raise ModelError(
                f"tensor {name} would not be used: it is no lora_A or lora_B of a linear layer"
            )
        if tensor.dtype not in DTYPES:
            raise ModelError(f"tensor {name} is {tensor.dtype}; {', '.join(DTYPES)} can be read")
        of_module = sides.setdefault(matched["module"], {})
        if matched["side"] in of_module:
            raise ModelError(f"tensor {name} is there twice")
        of_module[matched["side"]] = name
    if not sides:
        raise ModelError(f"{WEIGHT_FILE} holds no tensors")
    pairs: dict[str, Pair] = {}
    for module, names in sides.items():
        if len(names) == 1:
            raise ModelError(f"tensor {min(names.values())} has no counterpart")
        place = targets.find(module, names["A"])
        if place.name in pairs:
            raise ModelError(f"tensor {names['A']} is for a layer that another tensor is for")
        stored_rank = (*stored[names["A"]].shape, 0)[0]
        rank = options.rank_of(module, stored_rank)
        if rank > max_rank:
            raise ModelError(
                f"the adapter has rank {rank}, above max_lora_rank={max_rank}; start with --max-lora-rank {rank}"
            )
        _check_shape(names["A"], stored, [rank, place.in_features], place)
        _check_shape(names["B"], stored, [place.out_features, rank], place)
        pairs[place.name] = Pair(
            place, names["A"], names["B"], rank, options.scale_of(module, stored_rank)
        )
    return list(pairs.values())


def _check_shape(
    name: str, stored: Mapping[str, StoredTensor], wanted: list[int], place: Place
) -> None:
    shape = list(stored[name].shape)
    if shape != wanted:
        raise ModelError(
            f"tensor {name} is {shape}, but the adapter's rank and the model's layer {place.name} ask for {wanted}; "
            "was it made for another model?"
        )


def digest_of(*files: Path) -> str:
    """Digest of the files' contents: hexadecimal SHA-256, shortened."""
    state = hashlib.sha256()
    for path in files:
        state.update(path.stat().st_size.to_bytes(8, "little"))
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                state.update(chunk)
    return state.hexdigest()[:DIGEST_CHARS]
