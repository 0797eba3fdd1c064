"""Lists a model's safetensors files, or its GGUF file, without opening a tensor. Front end (is there anything to
load?) and workers.

Other formats are refused: a .bin or .pt file is a pickle, and unpickling somebody else's file runs their code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tenonry.errors import ModelError
from tenonry_hf_hub.files import read_json
from tenonry_hf_hub.gguf import WEIGHTS

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_INDEX_BYTES = 256 << 20
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
OTHER_FORMATS = (*PICKLED, ".gguf", ".msgpack", ".h5")


class WeightFiles(NamedTuple):
    """`files`: the safetensors files, in a fixed order, or the one GGUF file. `weight_map`: tensor name → file name, if
    there is an index.

    `absent`: names of files that the index names and that are not there.
    """

    files: tuple[Path, ...]
    weight_map: dict[str, str] | None
    absent: tuple[str, ...] = ()


def list_weights(folder: str | Path) -> WeightFiles:
    """The files that hold the weights of the model in `folder`, all of them.

    Raises ModelError as `find_weights` does, and when a file of the index is missing.
    """
    found = find_weights(folder)
    if found.absent:
        raise ModelError(_lacks(Path(folder), found, found.absent))
    return found


def find_weights(folder: str | Path) -> WeightFiles:
    """The files that are there: text of a model that also sees or hears may need no more.

    Raises ModelError: none there (naming what is there instead), or the index points out of the folder.
    """
    folder = Path(folder)
    if (folder / INDEX).exists():
        return _from_index(folder)
    if (folder / SINGLE).is_file():
        return WeightFiles((folder / SINGLE,), None)
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    # An adapter is no model, and "consolidated" files repeat the weights under other names.
    plain = [path for path in found if not path.name.startswith(("adapter_", "consolidated"))]
    if not plain and (folder / WEIGHTS).is_file():
        return WeightFiles((folder / WEIGHTS,), None)
    if not plain:
        raise ModelError(_nothing_to_load(folder, [path.name for path in found]))
    return WeightFiles(tuple(plain), None)


def _from_index(folder: Path) -> WeightFiles:
    index = folder / INDEX
    weight_map = read_json(index, max_bytes=MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} has no weight_map; download or save the model again")
    names = sorted({_safe_name(index, name) for name in weight_map.values()})
    there = tuple(folder / name for name in names if (folder / name).is_file())
    absent = tuple(name for name in names if not (folder / name).is_file())
    found = WeightFiles(there, weight_map, absent)
    if not there:
        raise ModelError(_lacks(folder, found, absent))
    return found


def check_present(folder: str | Path, found: WeightFiles, needed: Iterable[str]) -> None:
    """Raises ModelError when a tensor of `needed`, names of the checkpoint, is in a file that is not there."""
    weight_map = found.weight_map or {}
    wanted = {weight_map[name] for name in needed if name in weight_map}
    lacking = sorted(wanted.intersection(found.absent))
    if lacking:
        raise ModelError(_lacks(Path(folder), found, lacking))


def _lacks(folder: Path, found: WeightFiles, names: Sequence[str]) -> str:
    some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    total = len(found.files) + len(found.absent)
    return (
        f"{folder} lacks {len(names)} of the {total} weight files that {INDEX} names ({some}); download the model "
        "again, or use load_format=dummy"
    )


def _safe_name(index: Path, name: object) -> str:
    """A file name of the index, if it is one. Only its text is checked: in the hub's cache, files are links."""
    if not isinstance(name, str) or not name.endswith(".safetensors"):
        raise ModelError(f"{index} names {name!r}, which is not a .safetensors file")
    if "/" in name or "\\" in name or "\0" in name or name.startswith("."):
        raise ModelError(f"{index} names {name!r}, which is not a file of this folder")
    return name


def _nothing_to_load(folder: Path, passed_over: list[str]) -> str:
    others = sorted(path.name for path in folder.iterdir() if path.suffix in OTHER_FORMATS)
    there = (passed_over + others)[:4]
    found = (
        f"only {', '.join(there)}, which cannot be loaded" if there else "no weights of any kind"
    )
    remedy = "choose a safetensors revision"
    if any(name.endswith(PICKLED) for name in others):
        remedy = f"convert them once: tenonry models convert {folder} {folder}-safetensors"
    return (
        f"{folder} holds {found}: weights must be *.safetensors; {remedy}, or use load_format=dummy, which makes "
        "random ones"
    )
