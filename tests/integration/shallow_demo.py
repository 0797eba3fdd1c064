"""The demo model with its first layers alone, for tests that compare answers with themselves, or with a grammar."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tenonry_demo_model import model_path

DEMO = Path(model_path())


def save(folder: Path, num_layers: int) -> Path:
    """Write the model with its first layers to a new folder."""
    # The tests of other servers import this module, too, and need no torch.
    from safetensors.torch import load_file, save_file

    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((DEMO / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": num_layers}))
    kept = {
        name: tensor
        for name, tensor in load_file(DEMO / "model.safetensors").items()
        if number_of_layer(name) < num_layers
    }
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def number_of_layer(name: str) -> int:
    """That of the layer which a tensor belongs to; 0 for one that belongs to none."""
    _, _, rest = name.partition(".layers.")
    return int(rest.partition(".")[0] or 0)
