"""Facts of fake models, and a hook module that resolves their names: `fake`, and `fake-lockstep`, whose data-parallel
engines run in lockstep. Any process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tenonry.config import EngineConfig
from tenonry.info import EngineInfo, ModelInfo
from tenonry.plugin.hookspecs import hookimpl

FAKE_MODEL = "fake"
FAKE_LOCKSTEP_MODEL = "fake-lockstep"


def fake_model(**facts: Any) -> ModelInfo:
    """A ModelInfo for tests; keyword arguments replace its facts."""
    return ModelInfo(
        **{
            "name": FAKE_MODEL,
            "path": "",
            "architecture": "FakeForCausalLM",
            "max_model_len": 2048,
            "vocab_size": 512,
            "eos_token_ids": (),
            **facts,
        }
    )


def folder_model(folder: str | Path) -> ModelInfo:
    """The ModelInfo of a model folder with a tokenizer, named after the folder's last part."""
    path = Path(folder)
    facts = json.loads((path / "config.json").read_text("utf-8"))
    return ModelInfo(
        name=path.name,
        path=str(path),
        architecture=facts["architectures"][0],
        max_model_len=facts["max_position_embeddings"],
        vocab_size=facts["vocab_size"],
        tokenizer_path=str(path),
    )


def fake_info(max_model_len: int) -> EngineInfo:
    """An EngineInfo for tests: one engine with that limit, and 8 blocks."""
    return EngineInfo(
        model=FAKE_MODEL,
        served_model_name=FAKE_MODEL,
        max_model_len=max_model_len,
        num_gpu_blocks=8,
        block_size=16,
    )


class FakeModelHooks:
    """Hook module for `model="fake"`, registered with a PluginManager; `facts` replace those of `fake_model`."""

    def __init__(self, **facts: Any) -> None:
        self.facts = facts

    @hookimpl
    def tenonry_resolve_model(self, config: EngineConfig) -> ModelInfo | None:
        """Resolve one of the fake models."""
        return fake_model(**self.facts) if config.model == FAKE_MODEL else None


@hookimpl
def tenonry_resolve_model(config: EngineConfig) -> ModelInfo | None:
    """Resolve a fake model; this module itself is a hook module that entry points may name."""
    if config.model == FAKE_LOCKSTEP_MODEL:
        return fake_model(name=FAKE_LOCKSTEP_MODEL, needs_lockstep=True)
    return fake_model() if config.model == FAKE_MODEL else None
