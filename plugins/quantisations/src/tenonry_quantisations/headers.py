"""Tensors of a matrix required by formats, checked before any is read: existence, type and shape. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenonry.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tenonry_hf_hub import StoredTensor

FLOATS = ("F16", "BF16", "F32")
REMEDY = "download the model again, or correct quantization_config in its config.json"


class Parts:
    """The stored tensors of module `name`, by their endings. Each look raises ModelError that names the tensor."""

    def __init__(self, name: str, stored: Mapping[str, StoredTensor]) -> None:
        self.name = name
        self.stored = stored

    def has(self, ending: str) -> bool:
        return ending in self.stored

    def shape(self, ending: str, types: Sequence[str], num_dims: int = 2) -> tuple[int, ...]:
        """Shape of a required tensor, of one of these types."""
        tensor = self.stored.get(ending)
        if tensor is None:
            here = ", ".join(sorted(self.stored))
            raise ModelError(
                f"{self.name}.{ending} is in no file of the checkpoint, which has {here} of that module; {REMEDY}"
            )
        if tensor.dtype not in types:
            raise ModelError(
                f"{tensor.file}: tensor {self.name}.{ending} is {tensor.dtype}, not {' or '.join(types)}; {REMEDY}"
            )
        if len(tensor.shape) != num_dims:
            raise ModelError(
                f"{tensor.file}: tensor {self.name}.{ending} is {list(tensor.shape)}, not of {num_dims} dimensions; "
                f"{REMEDY}"
            )
        return tensor.shape

    def expect(self, ending: str, types: Sequence[str], shape: tuple[int, ...]) -> None:
        """A tensor that must be there and have this shape."""
        found = self.shape(ending, types, len(shape))
        if found != shape:
            raise ModelError(
                f"{self.stored[ending].file}: tensor {self.name}.{ending} is {list(found)}, and the others of that "
                f"module ask for {list(shape)}; {REMEDY}"
            )

    def num_groups(self, columns: int, group_size: int) -> int:
        """Number of groups for a group size; −1 is one group."""
        if group_size == -1:
            return 1
        if group_size < 1 or columns % group_size:
            raise ModelError(
                f"{self.name}: {columns} inputs are no multiple of group_size={group_size}; {REMEDY}"
            )
        return columns // group_size


def entry(
    config: Mapping[str, Any], key: str, known: Sequence[Any], default: Any, name: str
) -> Any:
    """An entry of a quantization_config. Raises ModelError with the supported values."""
    found = config.get(key, default)
    if found not in known:
        raise ModelError(
            f"quantization_config: {key}={found!r} of {name} is not known (it is one of "
            f"{', '.join(str(each) for each in known)}); take a model in one of these, or with its floats"
        )
    return found


def group_size_of(config: Mapping[str, Any], name: str, default: int) -> int:
    """The columns of a group; −1 for all."""
    found = config.get("group_size", default)
    if not isinstance(found, int) or isinstance(found, bool) or found == 0 or found < -1:
        raise ModelError(
            f"quantization_config: group_size={found!r} of {name}: a number from 1 on, or -1"
        )
    return found
