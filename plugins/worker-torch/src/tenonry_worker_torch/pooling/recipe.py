"""Pooling configuration of a folder: from hidden states to one vector. Read before any weight. Worker process.

Folders of sentence-transformers store it in `modules.json`, `1_Pooling/config.json` and `sentence_bert_config.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tenonry.errors import ModelError

# Newest form of the pooling config first: one name or several. Before it, a flag per name, joined in this order.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
MODES = tuple(FLAGS.values())
# modules.json holds names of classes; only the last part of each is looked at.
POOLING = "Pooling"
DENSE = "Dense"
NORMALIZE = "Normalize"


class Recipe(msgspec.Struct, frozen=True):
    """Steps from hidden states to a vector. `modes`: concatenated poolings; empty if the folder names none. `dense`:
    folders of the linear layers that follow, in order. `normalize`: scale the vector to length 1 at the end.
    """

    modes: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    normalize: bool = True


def read_recipe(path: str) -> Recipe:
    """Read the folder's recipe. Raises ModelError that names an unsupported module."""
    folder = Path(path)
    if not (folder / "modules.json").exists():
        return Recipe()
    modes: tuple[str, ...] = ()
    dense = []
    normalize = False
    for number, module in enumerate(read_json(folder / "modules.json", list)):
        kind, place = _named(module)
        inside = _folder_inside(folder, place)
        if number == 0 and kind == "Transformer" and not place:
            _check_transformer(folder)
        elif number == 1 and kind == POOLING and inside is not None:
            modes = _modes(inside / "config.json")
        elif number > 1 and kind == DENSE and place and inside is not None and not normalize:
            dense.append(str(inside))
        elif number > 1 and kind == NORMALIZE and not normalize:
            normalize = True
        else:
            where = f" in folder {place}" if place else ""
            raise ModelError(
                f"{folder / 'modules.json'}: worker 'pooling' cannot run module {number}, {kind or repr(module)}"
                f"{where}; it runs a Transformer in the folder itself, a Pooling, Dense layers in folders beside it, "
                "and a Normalize, in this order"
            )
    if not modes:
        raise ModelError(
            f"{folder / 'modules.json'} names no Pooling, and models that keep a vector per token, as for late "
            "interaction (ColBERT), are not served; where one per text is meant, delete the file and give "
            "--worker-option pooling=mean, cls or lasttoken"
        )
    return Recipe(modes, tuple(dense), normalize)


def _named(module: Any) -> tuple[str, str]:
    """Return (class without its package, folder) of one module, "" for a missing part."""
    if not isinstance(module, dict):
        return "", ""
    kind = str(module.get("type", "")).rsplit(".", 1)[-1]
    return kind, str(module.get("path") or "")


def _folder_inside(folder: Path, place: str) -> Path | None:
    """Return a folder, or None outside the model's folder."""
    inside = Path(place)
    if inside.is_absolute() or ".." in inside.parts:
        return None
    return folder / inside


def _modes(file: Path) -> tuple[str, ...]:
    config = read_json(file, dict)
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or ())
    if named is None:
        modes = [mode for flag, mode in FLAGS.items() if config.get(flag) is True]
    if not modes or not set(map(str, modes)) <= set(MODES):
        raise ModelError(
            f"{file}: worker 'pooling' cannot pool by {' and '.join(map(str, modes)) or 'nothing'}; it pools by one or "
            f"several of {', '.join(MODES)}"
        )
    if config.get("include_prompt") is False:
        raise ModelError(
            f"{file}: include_prompt is false, and worker 'pooling' gets a prompt and its text as one; set it to true "
            "where no text has a prompt in front of it"
        )
    return tuple(map(str, modes))


def _check_transformer(folder: Path) -> None:
    file = folder / "sentence_bert_config.json"
    if file.exists() and read_json(file, dict).get("do_lower_case"):
        raise ModelError(
            f"{file}: do_lower_case is true, and worker 'pooling' gets texts as tokens; set it to false, and let the "
            "tokenizer of the model lower its input"
        )


def read_json(file: Path, kind: type) -> Any:
    """Read a JSON file. Raises ModelError when it is missing, no JSON, or of another kind."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, kind):
        raise ModelError(f"{file} holds a {type(found).__name__}, not a {kind.__name__}")
    return found
