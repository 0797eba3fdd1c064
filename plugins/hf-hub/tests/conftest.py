"""Model folders and registered names for the tests."""

from __future__ import annotations

import json
import sys

import pytest

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 256,
    "vocab_size": 100,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}


@pytest.fixture
def model_folder(tmp_path):
    """A folder that looks like a model: config.json, a tokenizer and an (empty) weight file."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [2, 3], "do_sample": True, "top_k": 5})
    )
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


@pytest.fixture
def registered(tmp_path, monkeypatch, model_folder):
    """A distribution on sys.path that registers the model names `storyteller` (fine) and `broken` (not a path)."""
    site = tmp_path / "site"
    info = site / "storyteller-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: storyteller\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tenonry.models]\nstoryteller = storyteller:path\nbroken = storyteller:broken\n"
        "calm = storyteller:calm\n"
    )
    (site / "storyteller.py").write_text(
        f"def path():\n    return {str(model_folder)!r}\ndef broken():\n    return 3\n"
        "def calm():\n    from pathlib import Path\n    from tenonry_hf_hub import Located\n"
        "    return Located(Path(path()), generation={'do_sample': True, 'temperature': 0.2})\n"
    )
    monkeypatch.syspath_prepend(str(site))
    yield model_folder
    sys.modules.pop("storyteller", None)
