"""`tenonry models convert`: a checkpoint in pickle files becomes one in safetensors. Process of the command line.

Pickles are read by a child without network, other programs and privileges, as plain tensors only. Its output is checked
here by its headers, which become the index; only data files are copied with it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from tenonry.errors import ConfigError, ModelError
from tenonry_hf_hub import list_weights, read_headers, read_json

INDEX = "pytorch_model.bin.index.json"
SAFE_INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# Files of training next to the weights.
NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler", "trainer_state")
COPIED = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".md")
CODE = (".py", ".so", ".sh", ".ipynb")
MAX_INDEX_BYTES = 256 << 20
LAST_WORDS = 2000
CHILD = "tenonry_models.convert_child"


class Job(msgspec.Struct, frozen=True):
    """Job of the child: write the tensors of `files` into the folder `out`, `shard_bytes` to a file."""

    files: tuple[str, ...]
    out: str
    shard_bytes: int
    drop_tied_head: bool


class Done(msgspec.Struct, frozen=True):
    """Answer of the child: its confinement, or the `error` that ended it."""

    confined: tuple[str, ...] = ()
    error: str = ""


def convert(source: str, target: str, shard_bytes: int) -> str:
    """Convert `source` to `target`; returns a summary in one sentence.

    Raises ModelError for a folder that cannot be converted, ConfigError for a target that exists.
    """
    folder = Path(source)
    out = Path(target)
    config = read_json(folder / "config.json")
    files = pickle_files(folder)
    if out.exists():
        raise ConfigError(f"{out} exists; give a folder that does not")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as made:
        work = Path(made) / out.name
        work.mkdir()
        drop = bool(_text(config).get("tie_word_embeddings", config.get("tie_word_embeddings")))
        job = Job(
            tuple(str(path.resolve()) for path in files), str(work.resolve()), shard_bytes, drop
        )
        done = _run(job)
        total = _name_shards(work)
        left_out = _copy_data(folder, work)
        work.rename(out)
    parts = [
        f"{out} holds {total} tensors as safetensors (read without: {', '.join(done.confined)})"
    ]
    if left_out:
        parts.append(f"not copied, because it is code: {', '.join(left_out)}")
    return "; ".join(parts)


def _text(config: dict[str, Any]) -> dict[str, Any]:
    """The part of config.json that describes the language model."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def pickle_files(folder: Path) -> list[Path]:
    """Files with the weights, in a fixed order. Raises ModelError: none found, safetensors exist, or some missing."""
    if any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} has *.safetensors already; nothing needs to be converted")
    if (folder / INDEX).exists():
        return _of_index(folder)
    single = folder / "pytorch_model.bin"
    if single.is_file():
        return [single]
    found = sorted(
        path
        for path in folder.iterdir()
        if path.suffix in PICKLES and path.is_file() and not path.name.startswith(NO_WEIGHTS)
    )
    if not found:
        raise ModelError(f"{folder} holds no weights in {', '.join(PICKLES)} files")
    return found


def _of_index(folder: Path) -> list[Path]:
    weight_map = read_json(folder / INDEX, max_bytes=MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{folder / INDEX} has no weight_map; download the model again")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(PICKLES):
            raise ModelError(
                f"{folder / INDEX} names {name!r}, which is no weight file of this folder"
            )
        if not (folder / name).is_file():
            raise ModelError(
                f"{folder} lacks {name}, which {INDEX} names; download the model again"
            )
    return [folder / name for name in names]


def _run(job: Job) -> Done:
    """Have the child do it, with an empty environment. Raises ModelError with its last words."""
    child = subprocess.run(
        [sys.executable, "-I", "-m", CHILD],
        input=msgspec.json.encode(job),
        capture_output=True,
        env={"LC_ALL": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        check=False,
        close_fds=True,
    )
    try:
        done = msgspec.json.decode(child.stdout.splitlines()[-1], type=Done)
    except (msgspec.DecodeError, IndexError):
        words = child.stderr.decode("utf-8", "replace").strip()[-LAST_WORDS:]
        raise ModelError(
            f"the process that reads the weights ended with status {child.returncode}: {words or 'no words'}"
        ) from None
    if done.error:
        raise ModelError(done.error)
    return done


def _name_shards(work: Path) -> int:
    """Rename the files to their final names, and write the index; returns the number of tensors. Raises ModelError."""
    headers = read_headers(list_weights(work))
    if not headers:
        raise ModelError("the files hold no tensor at all")
    parts = sorted(work.glob("*.safetensors"))
    if len(parts) == 1:
        parts[0].rename(work / SINGLE)
        return len(headers)
    names = {
        path: f"model-{number:05}-of-{len(parts):05}.safetensors"
        for number, path in enumerate(parts, start=1)
    }
    weight_map = {key: names[tensor.file] for key, tensor in sorted(headers.items())}
    total = sum(tensor.num_bytes for tensor in headers.values())
    for path, name in names.items():
        path.rename(work / name)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (work / SAFE_INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")
    return len(headers)


def _copy_data(folder: Path, work: Path) -> list[str]:
    """Copy config, tokenizer and template files; the names of code files, which stay behind."""
    code = []
    for path in sorted(folder.iterdir()):
        if path.suffix in CODE:
            code.append(path.name)
        elif path.suffix in COPIED and path.is_file() and path.name != INDEX:
            shutil.copyfile(path, work / path.name)
    return code
