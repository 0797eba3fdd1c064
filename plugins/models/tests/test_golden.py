"""Output of `models check` for well-known models, from the published config.json alone.

`python plugins/models/tests/test_golden.py` writes the expected outputs again; read the difference first.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from tenonry_testkit.tiers import nightly_unless

HERE = Path(__file__).parent
# Windows; experts and layers with state. The others are checked at night.
USUAL = {"gemma-3-4b-it", "qwen3-next-80b-a3b"}
MODELS = sorted(path.stem for path in (HERE / "configs").glob("*.json"))
FLAGS = ("--worker", "torch", "--device", "cpu", "--memory", "2000G")


def output(name: str, folder: Path) -> str:
    """Output of the command for this model."""
    from tenonry.cli import main

    shutil.copy(HERE / "configs" / f"{name}.json", folder / "config.json")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main(["models", "check", str(folder), *FLAGS])
    text = printed.getvalue().replace(str(folder), "FOLDER")
    # The other workers that are installed differ from one environment to another.
    lines = [line for line in text.splitlines() if not line.startswith("instead")]
    assert status == int("servable    yes" not in lines)
    return "\n".join(lines) + "\n"


def expected(name: str) -> str:
    """Expected output with the installed transformers, which may lack the family's tensor parallel plan."""
    from transformers import CONFIG_MAPPING

    text = golden(name).read_text("utf-8")
    model_type = json.loads((HERE / "configs" / f"{name}.json").read_text("utf-8"))["model_type"]
    if getattr(CONFIG_MAPPING[model_type]().get_text_config(), "base_model_tp_plan", None):
        return text
    return re.sub(r"tensor parallel [\d, ]+;", "tensor parallel 1;", text)


def golden(name: str) -> Path:
    """File with the expected output."""
    return HERE / "golden" / f"{name}.txt"


def test_there_are_ten():
    assert len(MODELS) == 10


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("name", nightly_unless(lambda name: name in USUAL, MODELS))
@pytest.mark.slow
def test_facts_of_a_well_known_model(name, tmp_path):
    assert output(name, tmp_path) == expected(name)


def write() -> None:
    """Write the expected outputs."""
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            golden(name).write_text(output(name, Path(folder)), "utf-8")


if __name__ == "__main__":
    write()
