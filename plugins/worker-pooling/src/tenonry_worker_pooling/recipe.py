"""How a folder says that its hidden states become one vector. Read before any weight. Worker process.

Folders of sentence-transformers say it in `modules.json`, `1_Pooling/config.json` and `sentence_bert_config.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tenonry.errors import ModelError

# Newest form of the pooling config first: one name. Before it, a flag per name.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
MODES = ("mean", "cls", "lasttoken")


class Recipe(msgspec.Struct, frozen=True):
    """Which hidden states make a vector, "" where the folder does not say, and whether it gets length 1."""

    mode: str = ""
    normalize: bool = True


def read_recipe(path: str) -> Recipe:
    """What the folder says. Raises ModelError that names the module which cannot be served."""
    folder = Path(path)
    if not (folder / "modules.json").exists():
        return Recipe()
    modules = _read(folder / "modules.json", list)
    mode = ""
    normalize = False
    for number, module in enumerate(modules):
        kind = str(module.get("type", "")).rsplit(".", 1)[-1] if isinstance(module, dict) else ""
        place = str(module.get("path") or "") if isinstance(module, dict) else ""
        if number == 0 and kind == "Transformer" and not place:
            _check_transformer(folder)
        elif number == 1 and kind == "Pooling":
            mode = _mode(folder / place / "config.json")
        elif number == 2 and kind == "Normalize":
            normalize = True
        else:
            where = f" in folder {place}" if place else ""
            raise ModelError(
                f"{folder / 'modules.json'}: worker 'pooling' cannot run module {number}, {kind or repr(module)}"
                f"{where}; it runs a Transformer in the folder itself, a Pooling, and a Normalize, in this order"
            )
    if not mode:
        raise ModelError(
            f"{folder / 'modules.json'} names no Pooling; delete the file and give --worker-option "
            "pooling=mean, cls or lasttoken"
        )
    return Recipe(mode, normalize)


def _mode(file: Path) -> str:
    config = _read(file, dict)
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or ())
    modes += [mode for flag, mode in FLAGS.items() if config.get(flag) is True]
    if len(modes) != 1 or modes[0] not in MODES:
        raise ModelError(
            f"{file}: worker 'pooling' cannot pool by {' and '.join(map(str, modes)) or 'nothing'}; it pools by one of "
            f"{', '.join(MODES)}"
        )
    return str(modes[0])


def _check_transformer(folder: Path) -> None:
    file = folder / "sentence_bert_config.json"
    if file.exists() and _read(file, dict).get("do_lower_case"):
        raise ModelError(
            f"{file}: do_lower_case is true, and worker 'pooling' gets texts as tokens; set it to false, and let the "
            "tokenizer of the model lower its input"
        )


def _read(file: Path, kind: type) -> Any:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, kind):
        raise ModelError(f"{file} holds a {type(found).__name__}, not a {kind.__name__}")
    return found
