"""The compiled library: located next to this module, loaded, queried for usable instruction sets. Worker process."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from tenonry_torch_base.openmp import team

PATH = Path(__file__).with_name("libkernels.so")
VERSION = 20  # of the structs and parameters in native/; the library reports its own
ADDRESS = ctypes.c_void_p
COUNT = ctypes.c_int64
REAL = ctypes.c_float

# Parameters of each kernel.
PARAMETERS: dict[str, tuple[type, ...]] = {
    "attention": (
        *(ADDRESS, COUNT, ADDRESS, COUNT),
        *(ADDRESS, ADDRESS, COUNT),
        *(ADDRESS, ADDRESS, ADDRESS),
    ),
    "attention_half": (
        *(ADDRESS, ADDRESS, COUNT, ADDRESS),
        *(ADDRESS, ADDRESS, COUNT),
        *(ADDRESS, ADDRESS, ADDRESS),
    ),
    "best_allowed": (*(COUNT, COUNT, ADDRESS, ADDRESS, COUNT), *(ADDRESS, ADDRESS)),
    "blocked_linear": (*(ADDRESS, COUNT, COUNT), *(ADDRESS, COUNT, ADDRESS, ADDRESS, ADDRESS)),
    "prepared_bytes": (ADDRESS,),
    "low_bit_linear": (*(ADDRESS, COUNT, COUNT), *(ADDRESS, COUNT, ADDRESS, ADDRESS, ADDRESS)),
    "low_bit_rows": (*(ADDRESS, COUNT, COUNT), *(ADDRESS, COUNT, ADDRESS)),
    "lay_out": (ADDRESS, COUNT, COUNT, ADDRESS),
    "paged_attention": (*(ADDRESS, COUNT, COUNT), *(ADDRESS, COUNT, ADDRESS, ADDRESS)),
    "chunk_attention": (*(ADDRESS, COUNT, COUNT, ADDRESS, ADDRESS), *(ADDRESS, ADDRESS, ADDRESS)),
    "gate": (COUNT, COUNT, COUNT, ADDRESS, ADDRESS),
    "half_norm": (COUNT, COUNT, COUNT, ADDRESS, ADDRESS, REAL, ADDRESS),
    "turn_heads": (*(ADDRESS, COUNT, COUNT), *(ADDRESS, ADDRESS, ADDRESS, COUNT)),
    "invariant_layer": (
        *(ADDRESS, COUNT, COUNT, COUNT),
        *(ADDRESS, ADDRESS, ADDRESS, COUNT),
        *(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS),
    ),
    "invariant_linear": (*(ADDRESS, COUNT, COUNT), *(ADDRESS, ADDRESS, ADDRESS)),
    "invariant_norm": (COUNT, COUNT, ADDRESS, ADDRESS, REAL, ADDRESS),
    "layer": (
        *(ADDRESS, COUNT, COUNT),
        *(ADDRESS, ADDRESS, ADDRESS, COUNT),
        *(ADDRESS, ADDRESS, ADDRESS),
    ),
    "stack": (
        *(ADDRESS, COUNT, COUNT, COUNT),
        *(ADDRESS, ADDRESS, ADDRESS, COUNT),
        *(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS),
    ),
    "prompts": (
        *(ADDRESS, COUNT, COUNT, COUNT, COUNT),
        *(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, COUNT),
        *(ADDRESS, ADDRESS, ADDRESS, ADDRESS, COUNT, ADDRESS),
    ),
    "prompts_room": (ADDRESS, COUNT, COUNT, COUNT),
    "rounds": (ADDRESS, COUNT, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS),
    "rounds_room": (ADDRESS, COUNT, COUNT),
    "rms_norm": (COUNT, COUNT, ADDRESS, ADDRESS, REAL, ADDRESS),
    "delta_rule": (
        *(ADDRESS, COUNT, ADDRESS, COUNT),
        *(ADDRESS, COUNT, COUNT),
        *(ADDRESS, COUNT),
        *(ADDRESS, ADDRESS, ADDRESS),
    ),
    "delta_rule_half": (
        *(ADDRESS, ADDRESS, COUNT, ADDRESS),
        *(ADDRESS, COUNT, COUNT),
        *(ADDRESS, COUNT),
        *(ADDRESS, ADDRESS, ADDRESS),
    ),
    "experts": (ADDRESS, COUNT, ADDRESS, ADDRESS, ADDRESS, ADDRESS),
    "low_rank": (*(ADDRESS, ADDRESS, ADDRESS, COUNT), *(ADDRESS, COUNT, ADDRESS, COUNT, ADDRESS)),
}
# Of the others there is none.
RESULTS: dict[str, type] = dict.fromkeys(
    ("lay_out", "prepared_bytes", "prompts_room", "rounds_room"), COUNT
)


class LibraryError(Exception):
    """Reason why there are no kernels."""


@cache
def library(path: Path = PATH) -> ctypes.CDLL:
    """Raises LibraryError where the library is missing, cannot be loaded, or is of another version."""
    if not path.exists():
        raise LibraryError(
            f"{path} is not there: no C compiler was found when tenonry-kernels-cpu was installed; "
            "install gcc, then run: pip install --force-reinstall --no-deps tenonry-kernels-cpu"
        )
    try:
        found = ctypes.CDLL(str(path))
        found.tenonry_kernels_version.restype = COUNT
        found.tenonry_kernels_sets.restype = ctypes.c_char_p
        found.tenonry_kernels_team.argtypes = [ADDRESS]
        version = found.tenonry_kernels_version()
    except (OSError, AttributeError) as error:
        raise LibraryError(f"{path} does not load: {error}") from None
    if version != VERSION:
        raise LibraryError(
            f"{path} is of version {version}, and {VERSION} is needed; install it again"
        )
    found.tenonry_kernels_team(team())
    return found


def instruction_sets() -> list[str]:
    """Those that the library has and this processor can do, best first. Raises LibraryError."""
    words: bytes = library().tenonry_kernels_sets()
    return words.decode().split()


@cache
def function(kernel: str, instruction_set: str) -> ctypes._NamedFuncPointer:
    """A kernel for an instruction set, which must be one of `instruction_sets`."""
    found = getattr(library(), f"tenonry_{kernel}_{instruction_set}")
    found.argtypes = PARAMETERS[kernel]
    found.restype = RESULTS.get(kernel)
    return found
