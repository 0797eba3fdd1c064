"""Weights of a GGUF file under the names of transformers: location and storage of each. Any process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tenonry.errors import ModelError
from tenonry_hf_hub.gguf.families import Place, config_of, family_of, places
from tenonry_hf_hub.gguf.header import Header, TensorEntry, read_header
from tenonry_hf_hub.gguf.rope import FREQUENCIES

# Those that are read: dequantised by the library, and compared with another dequantiser by a test.
KINDS = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS",
)  # fmt: skip


class GgufTensor(NamedTuple):
    """`kind`: the type of the library's. `heads`: as `Place` has it."""

    file: Path
    stored_name: str
    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int
    heads: int


def read_tensors(path: Path) -> dict[str, GgufTensor]:
    """Name in transformers → tensor. Raises ModelError that names a tensor which is missing, of an unsupported type, of
    another shape than in the metadata, or unknown to such a model.
    """
    header = read_header(path)
    return tensors_of(header, path)


def tensors_of(header: Header, path: Path) -> dict[str, GgufTensor]:
    """As `read_tensors`, of a header that was read."""
    _, family = family_of(header, path)
    rest = dict(header.tensors)
    rest.pop(FREQUENCIES, None)  # config.json has them as numbers
    found = {}
    for name, place in places(config_of(header, path), family):
        entry = rest.pop(name, None)
        if entry is None:
            raise ModelError(
                f"{path} has no tensor {name}; download it again, or take another file of the model"
            )
        _check(path, name, entry, place)
        found[place.name] = GgufTensor(
            path, name, entry.kind, entry.shape, entry.begin, entry.end, place.heads
        )
    if rest:
        raise ModelError(
            f"{path} has {len(rest)} tensors that its family has no place for, such as {min(rest)}; without them the "
            "model would be another one: take the model's safetensors"
        )
    return found


def _check(path: Path, name: str, entry: TensorEntry, place: Place) -> None:
    if entry.shape != place.shape:
        raise ModelError(
            f"{path}: tensor {name} is {list(entry.shape)}, the file's metadata ask for {list(place.shape)}; download "
            "it again, or take another file of the model"
        )
    if entry.kind not in KINDS:
        raise ModelError(
            f"{path}: tensor {name} is of type {entry.kind}, and {', '.join(KINDS)} are read; take a file of one of "
            "these"
        )
