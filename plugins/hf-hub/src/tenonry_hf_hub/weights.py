"""Lists a model's safetensors files, without opening a tensor. Front end (is there anything to load?) and workers.

Other formats are refused: a .bin or .pt file is a pickle, and unpickling somebody else's file runs their code.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tenonry.errors import ModelError
from tenonry_hf_hub.files import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_INDEX_BYTES = 256 << 20
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
OTHER_FORMATS = (*PICKLED, ".gguf", ".msgpack", ".h5")


class WeightFiles(NamedTuple):
    """`files`: the safetensors files, in a fixed order. `weight_map`: tensor name → file name, if there is an index."""

    files: tuple[Path, ...]
    weight_map: dict[str, str] | None


def list_weights(folder: str | Path) -> WeightFiles:
    """The files that hold the weights of the model in `folder`.

    Raises ModelError: none there (naming what is there instead), a file of the index is missing, or the index points
    out of the folder.
    """
    folder = Path(folder)
    if (folder / INDEX).exists():
        return _from_index(folder)
    if (folder / SINGLE).is_file():
        return WeightFiles((folder / SINGLE,), None)
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    # An adapter is no model, and "consolidated" files repeat the weights under other names.
    plain = [path for path in found if not path.name.startswith(("adapter_", "consolidated"))]
    if not plain:
        raise ModelError(_nothing_to_load(folder, [path.name for path in found]))
    return WeightFiles(tuple(plain), None)


def _from_index(folder: Path) -> WeightFiles:
    index = folder / INDEX
    weight_map = read_json(index, max_bytes=MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} has no weight_map; download or save the model again")
    names = sorted({_safe_name(index, name) for name in weight_map.values()})
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        some = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise ModelError(
            f"{folder} lacks {len(missing)} of the {len(names)} weight files that {INDEX} names ({some}); download the "
            "model again, or use load_format=dummy"
        )
    return WeightFiles(tuple(folder / name for name in names), weight_map)


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
