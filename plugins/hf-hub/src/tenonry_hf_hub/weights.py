"""Lists a model's safetensors files, or its GGUF file, without opening a tensor. Front end (to check that weights
exist) and workers.

Other formats are rejected: a .bin or .pt file is a pickle, and unpickling an untrusted file runs its code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tenonry.errors import ModelError
from tenonry_hf_hub.files import read_json
from tenonry_hf_hub.gguf import WEIGHTS

SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"
INDEX_SUFFIX = ".safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
SHARD = re.compile(r"(?P<stem>.+)-\d+-of-(?P<total>\d{1,6})\.safetensors")
MAX_SHARDS = 10_000
MAX_INDEX_BYTES = 256 << 20
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
OTHER_FORMATS = (*PICKLED, ".gguf", ".msgpack", ".h5")


class WeightFiles(NamedTuple):
    """`files`: the safetensors files, in a fixed order, or the one GGUF file. `weight_map`: tensor name → file name, if
    there is an index.

    `absent`: missing files of the index. `note`: log text about other files that are not read, and the reason; "" if
    none.
    """

    files: tuple[Path, ...]
    weight_map: dict[str, str] | None
    absent: tuple[str, ...] = ()
    note: str = ""


def list_weights(folder: str | Path) -> WeightFiles:
    """The files that hold the weights of the model in `folder`, all of them.

    Raises ModelError as `find_weights` does, and when a file of the index is missing.
    """
    found = find_weights(folder)
    if found.absent:
        raise ModelError(_lacks(Path(folder), found, found.absent))
    return found


def holds_weights(folder: str | Path) -> bool:
    """Return True if the folder holds a file of weights, of any format, supported or not."""
    return any(path.suffix in (SUFFIX, *OTHER_FORMATS) for path in Path(folder).iterdir())


def find_weights(folder: str | Path) -> WeightFiles:
    """Existing weight files, in the order of transformers: those of `transformers_weights` in config.json; else
    model.safetensors, whatever else there is; else those of the index; else all others.

    The text part of a multimodal model may not need missing files. Raises ModelError: none found (naming the files
    found instead), shards are missing, or the index points out of the folder.
    """
    folder = Path(folder)
    chosen = _chosen_in_config(folder)
    plain = _plain_files(folder)
    if chosen is not None:
        found = _named(folder, chosen)
    elif (folder / SINGLE).is_file():
        found = WeightFiles((folder / SINGLE,), None)
    elif (folder / INDEX).exists():
        found = _from_index(folder / INDEX, plain)
    elif plain:
        found = _without_index(plain)
    elif (folder / WEIGHTS).is_file():
        found = WeightFiles((folder / WEIGHTS,), None)
    else:
        raise ModelError(_nothing_to_load(folder, sorted(folder.glob("*.safetensors"))))
    return found._replace(note=found.note or _note(folder, found, plain))


def _plain_files(folder: Path) -> tuple[Path, ...]:
    """Weight files without adapters, and without "consolidated" files, which repeat the weights under other names."""
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    return tuple(path for path in found if not path.name.startswith(("adapter_", "consolidated")))


def _chosen_in_config(folder: Path) -> str | None:
    file = folder / CONFIG
    chosen = read_json(file).get("transformers_weights") if file.exists() else None
    if chosen is None:
        return None
    if isinstance(chosen, str) and chosen.endswith(INDEX_SUFFIX):
        return _safe_name(file, chosen, INDEX_SUFFIX)
    return _safe_name(file, chosen)


def _named(folder: Path, chosen: str) -> WeightFiles:
    if not (folder / chosen).is_file():
        raise ModelError(
            f"{folder / CONFIG} names {chosen} (transformers_weights), which is not there; download the model again"
        )
    if chosen.endswith(INDEX_SUFFIX):
        return _from_index(folder / chosen, ())
    return WeightFiles((folder / chosen,), None)


def _from_index(index: Path, plain: tuple[Path, ...]) -> WeightFiles:
    """Files of the index; `plain` if none of them exist: a model was saved again next to an older index."""
    folder = index.parent
    weight_map = read_json(index, max_bytes=MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict):
        weight_map = {}
    names = sorted({_safe_name(index, name) for name in weight_map.values()})
    there = tuple(folder / name for name in names if (folder / name).is_file())
    absent = tuple(name for name in names if not (folder / name).is_file())
    found = WeightFiles(there, weight_map, absent)
    if there:
        return found
    if plain:
        reason = "names no file that is there" if names else "is empty"
        found = _without_index(plain)
        return found._replace(note=f"{index.name} {reason} and is not used")
    if not names:
        raise ModelError(f"{index} has no weight_map; download or save the model again")
    raise ModelError(_lacks(folder, found, absent))


def _without_index(plain: tuple[Path, ...]) -> WeightFiles:
    """Files without an index. Raises ModelError if their names imply further shards."""
    for path in plain:
        number = SHARD.fullmatch(path.name)
        if number is None:
            continue
        total = int(number["total"])
        width = len(number["total"])
        if total > MAX_SHARDS:
            continue
        names = [
            f"{number['stem']}-{part:0{width}}-of-{number['total']}.safetensors"
            for part in range(1, total + 1)
        ]
        lacking = [name for name in names if not path.with_name(name).is_file()]
        if lacking:
            raise ModelError(
                f"{path.parent} lacks {_some(lacking)}, {len(lacking)} of the {total} weight files that {path.name} is "
                "one of; download the model again, or use load_format=dummy"
            )
    return WeightFiles(plain, None)


def _note(folder: Path, found: WeightFiles, plain: tuple[Path, ...]) -> str:
    """Weight files in the folder that were not chosen."""
    beside = [path.name for path in plain if path not in found.files]
    if (folder / INDEX).exists() and found.weight_map is None:
        beside.insert(0, INDEX)
    if not beside:
        return ""
    return f"{_some([path.name for path in found.files])} hold the weights; {_some(beside)} beside them are not read"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def check_present(folder: str | Path, found: WeightFiles, needed: Iterable[str]) -> None:
    """Raises ModelError when a tensor of `needed`, names of the checkpoint, is in a file that is not there."""
    weight_map = found.weight_map or {}
    wanted = {weight_map[name] for name in needed if name in weight_map}
    lacking = sorted(wanted.intersection(found.absent))
    if lacking:
        raise ModelError(_lacks(Path(folder), found, lacking))


def _lacks(folder: Path, found: WeightFiles, names: Sequence[str]) -> str:
    total = len(found.files) + len(found.absent)
    return (
        f"{folder} lacks {len(names)} of the {total} weight files that {INDEX} names ({_some(names)}); download the "
        "model again, or use load_format=dummy"
    )


def _safe_name(index: Path, name: object, suffix: str = ".safetensors") -> str:
    """A file name of the index, if it is one. Only its text is checked: in the hub's cache, files are links."""
    if not isinstance(name, str) or not name.endswith(suffix):
        raise ModelError(f"{index} names {str(name)[:200]!r}, which is not a {suffix} file")
    if "/" in name or "\\" in name or "\0" in name or name.startswith("."):
        raise ModelError(f"{index} names {name[:200]!r}, which is not a file of this folder")
    return name


def _nothing_to_load(folder: Path, passed_over: list[Path]) -> str:
    others = sorted(path.name for path in folder.iterdir() if path.suffix in OTHER_FORMATS)
    there = ([path.name for path in passed_over] + others)[:4]
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
