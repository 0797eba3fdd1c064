"""Adapters, quantised weights, K/V blocks, tokenizers and GGUF data whose sizes lie (class T).

Each case is an error that names the file or the tensor, a miss, or a correct read; never a signal, nor memory beyond
the file. Cases are mutations of small valid files, the same in every run.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import struct
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).parents[2] / "plugins" / "worker-torch" / "tests"))

import worker_families

from tenonry.errors import ModelError
from tenonry_hf_hub.headers import read_header
from tenonry_io_text.loading import load_codec
from tenonry_kv_connectors.disk.block_file import BlockFormat
from tenonry_kv_connectors.disk.store import read_block
from tenonry_quantisations.awq import Awq
from tenonry_quantisations.gptq import Gptq
from tenonry_testkit import gguf_files
from tenonry_torch_base.checkpoint import Checkpoint
from tenonry_torch_base.gguf import gguf_slices
from tenonry_torch_base.weights import weights_of
from tenonry_worker_torch.adapters.folder import AdapterFolder
from tenonry_worker_torch.adapters.targets import LoraTargets

NUMBERS = (-1, 0, 1, 3, 4, 7, 2**31 - 1, 2**31, 2**32, 2**62, 2**63, 2**64, 10**30)
ODD = (*NUMBERS, 0.5, math.inf, "x", None, [], {}, True, [2**63], {"q_proj": -1}, {"q_proj": 2**40})
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "BOOL", "F8_E4M3", "X")
STEM = "base_model.model.model.layers.0.self_attn"
SPARSE_BYTES = 1 << 42


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file whose header, or whose end, lies."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    rest = data[8 + size :]
    names = sorted(set(header) - {"__metadata__"})
    kind = rng.randrange(8)
    entry = header[rng.choice(names)]
    if kind == 0:
        entry["dtype"] = rng.choice(DTYPES)
    elif kind == 1:
        entry["shape"][rng.randrange(len(entry["shape"]))] = rng.choice(NUMBERS)
    elif kind == 2:
        entry["shape"] = rng.choice([entry["shape"][::-1], [math.prod(entry["shape"])], []])
    elif kind == 3:
        entry["data_offsets"] = header[rng.choice(names)]["data_offsets"]
    elif kind == 4:
        header[rng.choice(names)] = header.pop(rng.choice(names), entry)
    elif kind == 5:
        return data[: rng.randrange(len(data))]
    elif kind == 6:
        return struct.pack("<Q", rng.choice(NUMBERS) % 2**64) + data[8:]
    else:
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 5)):
            changed[rng.randrange(8, 8 + size)] = rng.randrange(256)
        return bytes(changed)
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + rest


def tried(read: Callable[[], Any]) -> tuple[Any, str]:
    """Result of `read`, or None and the text of its error."""
    try:
        return read(), ""
    except ModelError as error:
        return None, str(error)


def truncated_to(path: Path, size: int) -> None:
    """Set the size of a file; without content if it grows."""
    try:
        os.truncate(path, size)
    except OSError:
        pytest.skip("the file system has no sparse files of 4 TiB")


@pytest.fixture(scope="module")
def model():
    return worker_families.build("llama")


@pytest.fixture(scope="module")
def places(model):
    return LoraTargets(copy.deepcopy(model), model)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    weights = {
        f"{STEM}.q_proj.lora_A.weight": torch.ones(4, 64),
        f"{STEM}.q_proj.lora_B.weight": torch.ones(64, 4),
    }
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_adapters_whose_files_lie(adapter, places, tmp_path):
    assert len(AdapterFolder(str(adapter), places, 16).read()) == 1
    rng = random.Random(1)
    weights = (adapter / "adapter_model.safetensors").read_bytes()
    config = json.loads((adapter / "adapter_config.json").read_text())
    names = [*config, "rank_pattern", "alpha_pattern", "use_rslora", "bias", "modules_to_save"]
    refused = 0
    for number in range(400):
        changed = dict(config)
        if number % 4 == 0:
            changed[rng.choice(names)] = rng.choice(ODD)
        text = json.dumps(changed)
        if number % 16 == 1:
            text = text[: rng.randrange(len(text))]
        (tmp_path / "adapter_config.json").write_text(text)
        data = damaged(weights, rng) if number % 4 else weights
        (tmp_path / "adapter_model.safetensors").write_bytes(data)
        found, error = tried(lambda: AdapterFolder(str(tmp_path), places, 16).read())
        assert len(error) < 1000
        if found is None:
            refused += 1
            continue
        for down, up in found.values():
            assert (down.shape, up.shape) == ((4, 64), (64, 4))
            assert up.isfinite().all()
    assert refused > 200


def test_an_adapter_that_is_longer_than_its_tensors_is_not_read(adapter, places, tmp_path):
    for file in adapter.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    truncated_to(tmp_path / "adapter_model.safetensors", SPARSE_BYTES)
    with pytest.raises(
        ModelError, match=r"has 4398046511104 bytes, and its tensors end at byte \d+"
    ):
        AdapterFolder(str(tmp_path), places, 16)


def packed(method: str) -> dict[str, torch.Tensor]:
    """The parts of a matrix [32, 64] in groups of 32 columns."""
    words = torch.arange(8 * 32, dtype=torch.int32)
    zeros = {"m.scales": torch.ones(2, 32), "m.qzeros": words[:8].reshape(2, 4).clone()}
    if method == "awq":
        return zeros | {"m.qweight": words.reshape(64, 4)}
    groups = torch.arange(64, dtype=torch.int32) // 32
    return zeros | {"m.qweight": words.reshape(8, 32), "m.g_idx": groups}


def dequantised(path: Path, quantisation: Any) -> tuple[int, int, torch.Tensor]:
    """Rows and columns as headers have them, and the values of the matrix."""
    stored = {name.partition(".")[2]: each for name, each in read_header(path).items()}
    rows, columns = quantisation.shape("m", stored)
    tensors = {name.partition(".")[2]: each for name, each in load_file(path).items()}
    return rows, columns, quantisation.weight("m", tensors).dequantised()


@pytest.mark.parametrize(("method", "kind"), [("gptq", Gptq), ("awq", Awq)])
def test_quantised_tensors_whose_headers_lie(method, kind, tmp_path):
    rng = random.Random(method)
    path = tmp_path / "model.safetensors"
    save_file(packed(method), path)
    whole = path.read_bytes()
    base = {"quant_method": method, "bits": 4, "group_size": 32}
    refused = 0
    for number in range(200):
        config: dict[str, Any] = dict(base)
        if number % 5 == 4:
            config[rng.choice(["bits", "group_size", "format", "version"])] = rng.choice(ODD)
        path.write_bytes(whole if number % 5 == 4 or number == 0 else damaged(whole, rng))
        made, error = tried(lambda config=config: dequantised(path, kind(config)))
        assert len(error) < 1000
        if made is None:
            refused += 1
            assert number
            continue
        rows, columns, values = made
        assert values.shape == (rows, columns)
    assert refused > 100


def test_groups_of_columns_that_do_not_exist(tmp_path):
    """Values that are indexes are bounded like sizes."""
    for value in (-1, 2, 2**31 - 1, -(2**31)):
        tensors = {name.partition(".")[2]: each for name, each in packed("gptq").items()}
        tensors["g_idx"][5] = value
        with pytest.raises(ModelError, match="g_idx has values from"):
            Gptq({"quant_method": "gptq", "bits": 4, "group_size": 32}).weight("m", tensors)


def test_block_files_whose_sizes_lie(tmp_path):
    rng = random.Random(3)
    block_format = BlockFormat("layout")
    name, content = b"n" * 40, bytes(range(256)) * 8
    header = block_format.header(name, content)
    for number in range(300):
        path = tmp_path / f"{number}.block"
        data = bytearray(header + content)
        kind = number % 4
        if kind == 0:
            del data[rng.randrange(len(data)) :]
        elif kind == 1:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 2:
            place = len(header) - 24  # the length of the content
            data[place : place + 8] = struct.pack("<Q", rng.choice(NUMBERS) % 2**64)
        else:
            data += rng.randbytes(rng.randrange(1, 99))
        path.write_bytes(data)
        assert read_block(path, name, block_format) is None
        assert not path.exists()
    path = tmp_path / "whole.block"
    path.write_bytes(header + content)
    assert read_block(path, name, block_format) == content


def test_a_block_file_that_is_too_large_is_not_read(tmp_path):
    """A sparse file of 4 TiB, more than memory holds."""
    block_format = BlockFormat("layout")
    path = tmp_path / "large.block"
    path.write_bytes(block_format.header(b"n" * 40, b"content") + b"content")
    truncated_to(path, SPARSE_BYTES)
    assert read_block(path, b"n" * 40, block_format) is None
    assert not path.exists()


def test_tokenizers_whose_numbers_lie(tmp_path):
    from tokenizers import Tokenizer, models

    Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])).save(
        str(tmp_path / "tokenizer.json")
    )
    whole = json.loads((tmp_path / "tokenizer.json").read_text())
    rng = random.Random(5)
    refused = 0
    for number in range(150):
        data = copy.deepcopy(whole)
        kind = number % 5
        if kind == 0:
            data["model"]["vocab"][rng.choice(["a", "b", "ab"])] = rng.choice(ODD)
        elif kind == 1:
            data["model"][rng.choice(["merges", "vocab", "type", "dropout", "unk_token"])] = (
                rng.choice(ODD)
            )
        elif kind == 2:
            data["added_tokens"] = [{"id": rng.choice(ODD), "content": "<x>", "special": True}]
        elif kind == 3:
            data[rng.choice(["truncation", "padding"])] = {
                "max_length": rng.choice(ODD),
                "pad_id": rng.choice(ODD),
            }
        text = json.dumps(data)
        if kind == 4:
            text = text[: rng.randrange(len(text))]
        (tmp_path / "tokenizer.json").write_text(text)
        codec, error = tried(lambda: load_codec(tmp_path))
        if codec is None:
            refused += 1
            assert str(tmp_path) in error
            continue
        assert codec.encode("ab", add_special_tokens=False) is not None
    assert refused > 60


def test_gguf_data_that_is_cut_or_no_number(tmp_path):
    path = gguf_files.write(tmp_path / "small.gguf")
    slices = gguf_slices([path])
    whole = path.read_bytes()
    rng = random.Random(7)
    for number in range(100):
        data = bytearray(whole)
        if number % 2:
            del data[len(data) - rng.randrange(1, 4000) :]
        else:
            begin = rng.randrange(len(data) // 2, len(data) - 64)
            data[begin : begin + 64] = b"\xff" * 64
        path.write_bytes(data)
        for each in slices.values():
            values, error = tried(lambda each=each: each[...])
            if values is None:
                assert str(path) in error
                continue
            assert np.isfinite(values.numpy()).all()


def test_a_file_that_shrinks_before_it_is_mapped(model, tmp_path):
    """Sizes were checked when headers were read; between that and the mapping the file was cut."""
    model.save_pretrained(tmp_path)
    checkpoint = Checkpoint(tmp_path, model)
    file = tmp_path / "model.safetensors"
    os.truncate(file, file.stat().st_size - 4096)
    with (
        pytest.raises(ModelError, match="not fully covered"),
        weights_of("Llama", str(tmp_path)),
        ExitStack() as open_files,
    ):
        checkpoint.slices(open_files)
