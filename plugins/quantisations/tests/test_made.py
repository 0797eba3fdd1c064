"""Checkpoints written by the libraries of their formats, compared with the logits of these libraries.

`made/` holds them; measure/as_library.py made them and lists the versions of the libraries.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from quantised_answers import PROMPT, answers
from safetensors.torch import load_file

pytestmark = pytest.mark.slow  # whole models

MADE = Path(__file__).parent / "made"
READERS = {"awq": "awq", "llm-compressor": "compressed-tensors"}
# Greatest relative error (L2) of log-probabilities: inputs are rounded to 8 bits here.
STATED_ERROR = 0.03


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_checkpoint_answers_as_its_library_computes_it(name, caplog):
    folder = MADE / name
    logits = load_file(folder / "logits.safetensors")["logits"]
    assert len(logits) == len(PROMPT)
    with caplog.at_level(logging.INFO):
        found, tokens = answers(folder)
    wanted = logits[:-1].log_softmax(-1)
    assert float((found - wanted).norm() / wanted.norm()) < STATED_ERROR
    assert tokens[0] == int(logits[-1].argmax())
    assert f"Quantisation {READERS[name]}: 4 matrices" in caplog.text


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_checkpoint_is_exact_where_layers_are_not_rounded(name):
    logits = load_file(MADE / name / "logits.safetensors")["logits"]
    found, tokens = answers(MADE / name, enforce_eager=True)
    torch.testing.assert_close(found, logits[:-1].log_softmax(-1), rtol=1e-3, atol=1e-3)
    assert tokens[0] == int(logits[-1].argmax())


def test_each_checkpoint_says_what_made_it():
    for name in READERS:
        versions = json.loads((MADE / name / "made_with.json").read_text())
        assert versions.keys() >= {"torch", "transformers"}
