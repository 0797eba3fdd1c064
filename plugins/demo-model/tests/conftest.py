"""Fixtures for the tests of the demo model: its folder, its tokenizer, and the folder of the training scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

import tenonry_demo_model


@pytest.fixture(scope="session")
def folder() -> Path:
    return Path(tenonry_demo_model.model_path())


@pytest.fixture(scope="session")
def train_folder() -> Path:
    return Path(__file__).resolve().parents[1] / "train"


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
