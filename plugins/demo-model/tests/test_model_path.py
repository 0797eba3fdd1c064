from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

FILES = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def test_entry_point_gives_the_folder(folder: Path) -> None:
    (point,) = entry_points(group="tenonry.models", name="demo")
    found = point.load()()
    assert isinstance(found, str)
    assert found == str(folder)


def test_folder_is_complete_and_holds_nothing_else(folder: Path) -> None:
    assert folder.is_absolute()
    assert {file.name for file in folder.iterdir()} == FILES


@pytest.mark.integration
def test_import_loads_no_heavy_library() -> None:
    code = (
        "import sys, tenonry_demo_model; tenonry_demo_model.model_path();"
        "print(sorted({'torch', 'transformers', 'tokenizers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
