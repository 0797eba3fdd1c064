"""msgpack for typed structs, with numpy arrays: small ones inline, large ones as separate frames (no copy).

A message is a list of frames: the body, then one frame per large array. Any process.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from tenonry.errors import WireError

T = TypeVar("T")
Frame = bytes | memoryview
INLINE_BYTES = 16_384
MAX_FRAMES = 4096
_NAMES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
# Types on the wire by name: numpy itself would parse any text, even as Python.
_DTYPES = {np.dtype(name).str: np.dtype(name) for name in _NAMES}
_TEXTS = {dtype: text for text, dtype in _DTYPES.items()}


class Encoder:
    """Encodes structs into frames. Not thread-safe."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._hook)
        self._frames: list[Frame] = []

    def encode(self, message: Any) -> list[Frame]:
        """Return the frames of `message`: the body first. Large arrays are referenced, so they must not change until
        sent.
        """
        self._frames = [b""]
        self._frames[0] = self._encoder.encode(message)
        return self._frames

    def _hook(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            text = _TEXTS.get(value.dtype)
            if text is not None:
                is_inline = value.nbytes <= INLINE_BYTES or len(self._frames) == MAX_FRAMES
                data = value.tobytes() if is_inline else self._refer_to(value)
                if value.ndim == 1:
                    return text, data
                return text, value.shape, data
            native = value.dtype.newbyteorder("=")
            if native in _TEXTS:
                return self._hook(value.astype(native))
            raise TypeError(f"an array of {value.dtype} cannot be sent to another process")
        return _plain_numpy(value)

    def _refer_to(self, array: np.ndarray) -> int:
        """Number of the frame of a large array."""
        self._frames.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return len(self._frames) - 1


class Decoder(Generic[T]):
    """Decodes frames into a struct type; strict: anything unexpected is a WireError."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind, dec_hook=self._hook)
        self._frames: Sequence[Any] = ()

    def decode(self, frames: Sequence[Any]) -> T:
        """Decode `frames` as received: bytes, memoryviews or zmq frames. Raises WireError."""
        if not 1 <= len(frames) <= MAX_FRAMES:
            raise WireError(f"a message has {len(frames)} frames; 1 to {MAX_FRAMES} are possible")
        self._frames = frames
        try:
            return self._decoder.decode(frames[0])
        except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise WireError(f"a frame cannot be decoded: {error}") from None
        finally:
            self._frames = ()

    def _hook(self, kind: Any, value: Any) -> Any:
        if type(value) is not list or not 2 <= len(value) <= 3:
            raise TypeError("an array must be (dtype, data) or (dtype, shape, data)")
        dtype = _DTYPES.get(value[0])
        if dtype is None:
            raise TypeError(f"arrays of {value[0]!r:.32} are not accepted")
        data = value[-1]
        if type(data) is int:
            if not 1 <= data < len(self._frames):
                raise TypeError(f"array frame {data} is missing")
            data = self._frames[data]
        array = np.frombuffer(data, dtype)
        wanted = _declared_type(kind)
        if wanted is not dtype and wanted is not None:
            array = _convert(array, wanted)
        if len(value) == 3:
            return array.reshape(value[1])
        return array


@functools.cache
def _declared_type(kind: Any) -> np.dtype[Any] | None:
    """Element type of `NDArray[…]`; None for a plain `np.ndarray`, which accepts all supported types."""
    arguments = typing.get_args(kind)
    return np.dtype(typing.get_args(arguments[1])[0]) if arguments else None


def _convert(array: np.ndarray, wanted: np.dtype[Any]) -> np.ndarray:
    """Return the same numbers as `wanted`. numpy would truncate others without an error."""
    if np.can_cast(array.dtype, wanted, "same_kind"):
        converted = array.astype(wanted)
        if wanted.kind == "f" or np.array_equal(converted, array):
            return converted
    raise TypeError(f"an array of {array.dtype} does not fit into {wanted}")


def to_plain(value: Any) -> Any:
    """Convert a value to plain lists, dicts, numbers, texts and bytes, for messages without a declared type."""
    return msgspec.to_builtins(
        value, builtin_types=(bytes, bytearray, memoryview), enc_hook=_plain_numpy
    )


def _plain_numpy(value: Any) -> Any:
    """Convert a numpy array to lists, a numpy scalar to a number. Raises TypeError for anything else."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent to another process")
