from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def header(file: Path) -> dict[str, dict[str, object]]:
    """Read a safetensors header: eight bytes of length, then JSON (the format's own definition)."""
    with file.open("rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        tensors = json.loads(stream.read(size))
    tensors.pop("__metadata__", None)
    return tensors


def test_weights_are_those_of_the_readme(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    readme = README.read_text(encoding="utf-8")
    assert hashlib.sha256(data).hexdigest() in readme
    assert f"{len(data):,}".replace(",", " ") + " bytes" in readme


def test_weights_are_small_and_bfloat16(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = header(file)
    parameters = sum(math.prod(entry["shape"]) for entry in tensors.values())
    assert file.stat().st_size <= 16_000_000
    assert {entry["dtype"] for entry in tensors.values()} == {"BF16"}
    assert f"{parameters:,}".replace(",", " ") + " parameters" in README.read_text(encoding="utf-8")
