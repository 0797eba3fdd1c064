"""The process that reads pickled weights and writes safetensors. It receives a job on standard input.

`torch.load` with `weights_only` reads tensors and plain containers and rejects everything else; should that check fail,
the process has no network, cannot start a program, and holds no secret of its parent's environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tenonry_models.confinement import forbid_calls, leave_network, limit
from tenonry_models.convert import Done, Job

# Where training scripts put the tensors of the model.
NESTED = ("state_dict", "model_state_dict", "model", "module")
TIED_HEAD = "lm_head.weight"
SPARE_BYTES = 4 << 30


class Unreadable(Exception):
    """A malformed file; the message names it."""


def main() -> int:
    """Confine this process, convert, answer. Returns the exit status."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    confined = ["network"] if leave_network() else []
    import torch  # before the calls are forbidden, because libraries look around when they are loaded

    torch.set_num_threads(1)
    stored = sum(Path(file).stat().st_size for file in job.files)
    limit(2 * stored + SPARE_BYTES, 2 * stored + job.shard_bytes + SPARE_BYTES)
    is_forbidden = forbid_calls()
    if is_forbidden or os.geteuid() != 0:  # the limit on processes is none for root
        confined.append("child processes")
    if is_forbidden:
        confined.append("sockets and other programs")
    try:
        write(job)
        done = Done(tuple(confined))
    except (Unreadable, OSError, ValueError, RuntimeError, MemoryError) as error:
        done = Done(error=" ".join(str(error).split()) or type(error).__name__)
    sys.stdout.buffer.write(msgspec.json.encode(done) + b"\n")
    return 1 if done.error else 0


def write(job: Job) -> None:
    """Write every tensor once, `shard_bytes` to a file, in the order in which they are found."""
    seen: dict[str, str] = {}
    shard: dict[str, Any] = {}
    number = 0
    filled = 0
    for file in job.files:
        tensors = read(Path(file))
        if job.drop_tied_head:
            drop_tied_head(tensors)
        for name, tensor in tensors.items():
            if name in seen:
                raise Unreadable(f"tensor {name} is in {seen[name]} and in {file}")
            seen[name] = file
            if shard and filled + tensor.nbytes > job.shard_bytes:
                _save(shard, job.out, number)
                number += 1
                filled = 0
                shard = {}
            shard[name] = own(tensor)
            filled += tensor.nbytes
    if shard:
        _save(shard, job.out, number)


def _save(tensors: dict[str, Any], out: str, number: int) -> None:
    from safetensors.torch import save_file

    save_file(tensors, Path(out) / f"part-{number:05}.safetensors", metadata={"format": "pt"})


def own(tensor: Any) -> Any:
    """Copy the tensor to separate memory: tensors that share memory cannot be written to one file."""
    import torch

    return tensor.detach().clone(memory_format=torch.contiguous_format)


def drop_tied_head(tensors: dict[str, Any]) -> None:
    """Drop the head if config.json ties it to the embedding and both are the same tensor."""
    head = tensors.get(TIED_HEAD)
    if head is None:
        return
    for name, tensor in tensors.items():
        same = (tensor.data_ptr(), tensor.shape, tensor.stride()) == (
            head.data_ptr(),
            head.shape,
            head.stride(),
        )
        if same and name != TIED_HEAD:
            del tensors[TIED_HEAD]
            return


def read(path: Path) -> dict[str, Any]:
    """Name → tensor of one file. Raises Unreadable with the file and the defect."""
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_archive(path))
    except Exception as error:  # the unpickler raises many classes
        reason = " ".join(str(error).split())[:300]
        raise Unreadable(
            f"{path} cannot be read as plain tensors, and is read in no other way: {type(error).__name__}: {reason}"
        ) from error
    return dict(_tensors(path, found))


def _is_archive(path: Path) -> bool:
    """Return True if torch wrote it as a zip archive, whose tensors can be read in place."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _tensors(path: Path, found: Any) -> Iterator[tuple[str, Any]]:
    import torch

    for key in NESTED:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not found:
        raise Unreadable(f"{path} holds a {type(found).__name__}, not tensors by name")
    for name, value in found.items():
        if not isinstance(value, torch.Tensor) or not isinstance(name, str):
            raise Unreadable(
                f"{path} holds a {type(value).__name__} as {name!r}; only tensors by name can be converted"
            )
        if value.layout is not torch.strided or value.is_quantized:
            raise Unreadable(
                f"{path}: tensor {name} is sparse or quantised; only plain ones can be converted"
            )
        yield name, value


if __name__ == "__main__":
    sys.exit(main())
