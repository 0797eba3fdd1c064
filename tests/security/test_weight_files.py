"""Weight files whose sizes lie: an error that names the file, or tensors that lie wholly inside it; never a signal.

Cases are mutations of small valid files, the same in every run.
"""

from __future__ import annotations

import itertools
import json
import random
import struct

import pytest

from tenonry.errors import ModelError
from tenonry_hf_hub.gguf.header import read_header as read_gguf
from tenonry_hf_hub.headers import read_header

NUMBERS = (-1, 0, 1, 7, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30)
ODD = (*NUMBERS, 1.5, "x", None, [], {}, True, [2**63], [-1, 4])
PER_SEED = 50
SEEDS = range(12)


def safetensors_file(header: object, data: bytes, size: int | None = None) -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(head) if size is None else size
    return struct.pack("<Q", length % 2**64) + head + data


def valid_header() -> dict[str, dict[str, object]]:
    return {
        "a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b.weight": {"dtype": "I8", "shape": [8], "data_offsets": [24, 32]},
        "c.weight": {"dtype": "BF16", "shape": [4, 2], "data_offsets": [32, 48]},
    }


def lying_safetensors(rng: random.Random) -> bytes:
    header = valid_header()
    data = bytes(48)
    kind = rng.randrange(7)
    entry = header[rng.choice(sorted(header))]
    if kind == 0:
        entry[rng.choice(["dtype", "shape", "data_offsets"])] = rng.choice(ODD)
    elif kind == 1:
        entry["data_offsets"] = [rng.choice(NUMBERS), rng.choice(NUMBERS)]
    elif kind == 2:
        entry["shape"] = [rng.choice(NUMBERS) for _ in range(rng.randrange(1, 4))]
    elif kind == 3:
        begin = rng.randrange(0, 48)
        entry["data_offsets"] = [begin, begin + rng.choice([8, 16, 24])]
    elif kind == 4:
        whole = safetensors_file(header, data)
        return whole[: rng.randrange(len(whole))]
    elif kind == 5:
        return safetensors_file(header, data, rng.choice(NUMBERS))
    else:
        whole = bytearray(safetensors_file(header, data))
        for _ in range(rng.randrange(1, 6)):
            whole[rng.randrange(len(whole) - 48)] = rng.randrange(256)
        return bytes(whole)
    return safetensors_file(header, data)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf_file(
    offsets: tuple[int, ...] = (0, 32), shape: tuple[int, ...] = (4, 2), kind: int = 0
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(offsets), 1)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for number, offset in enumerate(offsets):
        head += text(f"t{number}") + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", size % 2**64) for size in shape)
        head += struct.pack("<IQ", kind, offset % 2**64)
    return head + bytes(-len(head) % 32) + bytes(64)


def lying_gguf(rng: random.Random) -> bytes:
    kind = rng.randrange(5)
    if kind == 0:
        return gguf_file(offsets=(rng.choice(NUMBERS), rng.choice(NUMBERS)))
    if kind == 1:
        shape = tuple(rng.choice(NUMBERS) for _ in range(rng.randrange(1, 5)))
        return gguf_file(shape=shape)
    if kind == 2:
        return gguf_file(kind=rng.randrange(64))
    whole = gguf_file()
    if kind == 3:
        return whole[: rng.randrange(len(whole))]
    changed = bytearray(whole)
    for _ in range(rng.randrange(1, 6)):
        changed[rng.randrange(4, len(changed) - 64)] = rng.randrange(256)
    return bytes(changed)


def tried(read, path):
    """Result of `read`, and the text of its error."""
    try:
        return read(path), ""
    except ModelError as error:
        return None, str(error)


@pytest.mark.parametrize("seed", SEEDS)
def test_safetensors_whose_header_lies(tmp_path, seed):
    from safetensors import SafetensorError, safe_open

    rng = random.Random(seed)
    refused = 0
    for number in range(PER_SEED):
        path = tmp_path / f"model-{number}.safetensors"
        path.write_bytes(lying_safetensors(rng))
        found, words = tried(read_header, path)
        if found is None:
            refused += 1
            assert str(path) in words
            continue
        spans = sorted((each.begin, each.end) for each in found.values())
        assert all(0 <= begin <= end <= path.stat().st_size for begin, end in spans)
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
        try:
            with safe_open(path, framework="np") as file:
                for name in found:
                    file.get_slice(name).get_shape()
        except SafetensorError:
            pass  # that library supports fewer data types, or no gaps
    assert refused > PER_SEED // 2


@pytest.mark.parametrize("seed", SEEDS)
def test_gguf_whose_header_lies(tmp_path, seed):
    rng = random.Random(seed)
    refused = 0
    for number in range(PER_SEED):
        path = tmp_path / f"model-{number}.gguf"
        path.write_bytes(lying_gguf(rng))
        header, words = tried(read_gguf, path)
        if header is None:
            refused += 1
            assert str(path) in words
            continue
        there = path.stat().st_size
        assert all(0 <= each.begin <= each.end <= there for each in header.tensors.values())
    assert refused > PER_SEED // 3


def test_the_files_that_are_changed_are_valid(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(safetensors_file(valid_header(), bytes(48)))
    (tmp_path / "a.gguf").write_bytes(gguf_file())
    assert len(read_header(tmp_path / "a.safetensors")) == 3
    assert len(read_gguf(tmp_path / "a.gguf").tensors) == 2
