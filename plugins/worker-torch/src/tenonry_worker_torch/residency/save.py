"""Writes the weights of one rank into a folder that `load_format=sharded` reads. Worker process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tenonry.errors import ConfigError
from tenonry_torch_base.parallel.sharded import SHARD_INDEX, VERSION, ShardIndex, rank_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from transformers import PreTrainedModel

    from tenonry_torch_base.parallel.groups import Parallel

PATTERN = "model-rank-{rank}-part-{part}.safetensors"
MAX_PART_BYTES = 5 << 30
# Files of a model besides its weights.
COPIED = (".json", ".txt", ".jinja", ".model", ".tiktoken")
NOT_COPIED = ("model.safetensors.index.json", "tenonry-rank-")


def checked_pattern(pattern: str | None) -> str:
    """Raise ConfigError for a pattern that is no file name, or under which ranks or parts overwrite one another."""
    chosen = pattern or PATTERN
    example = chosen.replace("{rank}", "0").replace("{part}", "0")
    is_name = chosen.endswith(".safetensors") and not set(example) & set("/\\{}\0")
    if not is_name or "{rank}" not in chosen or "{part}" not in chosen or chosen.startswith("."):
        raise ConfigError(
            f"pattern {chosen[:80]!r} must be a file name with {{rank}} and {{part}}, such as {PATTERN}"
        )
    return chosen


def save_rank(
    model: PreTrainedModel,
    weights: dict[str, torch.Tensor],
    parallel: Parallel,
    source: str,
    folder: str,
    pattern: str | None,
    max_size: int | None,
) -> None:
    """`weights`: by the model's names. Files have their names when they are whole, the index last.

    `source`: the folder of the model, whose other files rank 0 copies. Raises ConfigError and OSError.
    """
    from safetensors.torch import save_file
    from transformers.core_model_loading import revert_weight_conversion

    chosen = checked_pattern(pattern)
    if max_size is not None and max_size < 1:
        raise ConfigError(f"max_size={max_size}: bytes of a file, at least 1")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if target.resolve() == Path(source).resolve():
        raise ConfigError(f"{folder} is the model's own folder; save into another one")
    rank = rank_of(parallel)
    named = dict(revert_weight_conversion(model, weights))
    files: dict[str, int] = {}
    for part, tensors in enumerate(parts_of(named, max_size or MAX_PART_BYTES)):
        name = chosen.replace("{rank}", str(rank)).replace("{part}", str(part))
        draft = target / f".{name}.draft"
        save_file(tensors, draft, metadata={"format": "pt"})
        draft.replace(target / name)
        files[name] = (target / name).stat().st_size
    if rank == 0:
        copy_other_files(Path(source), target)
    index = ShardIndex(VERSION, rank, parallel.tensor.size, parallel.link.num_stages, files)
    draft = target / f".rank-{rank}.draft"
    draft.write_bytes(msgspec.json.encode(index))
    draft.replace(target / SHARD_INDEX.format(rank=rank))


def parts_of(weights: dict[str, torch.Tensor], max_size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Groups of tensors in order, each of up to `max_size` bytes; a larger tensor is alone."""
    part: dict[str, torch.Tensor] = {}
    size = 0
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        if part and size + tensor.nbytes > max_size:
            yield part
            part = {}
            size = 0
        part[name] = tensor.clone()  # files hold no views
        size += tensor.nbytes
    if part:
        yield part


def copy_other_files(source: Path, target: Path) -> None:
    """Configuration, tokenizer and the like."""
    for file in sorted(source.iterdir()):
        if file.is_file() and file.suffix in COPIED and not file.name.startswith(NOT_COPIED):
            shutil.copyfile(file, target / file.name)
