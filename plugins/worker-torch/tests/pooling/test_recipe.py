"""Rejection of models before a weight is read, and the meaning of sentence-transformers' files."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from tenonry.errors import ModelError
from tenonry_worker_torch.pooling.heads import activation_of
from tenonry_worker_torch.pooling.outline import outline
from tenonry_worker_torch.pooling.recipe import Recipe, read_recipe


@pytest.mark.integration
def test_the_module_of_the_worker_is_light():
    code = "import tenonry_worker_torch.pooling_worker, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("kinds", "pooling", "expected"),
    [
        (("Transformer", "Pooling"), {"pooling_mode_cls_token": True}, Recipe(("cls",), normalize=False)),
        (("Transformer", "Pooling"), {"pooling_mode": "mean"}, Recipe(("mean",), normalize=False)),
        (
            ("Transformer", "Pooling"),
            {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
            Recipe(("max", "mean"), normalize=False),
        ),
        (("Transformer", "Pooling", "Normalize"), {"pooling_mode_lasttoken": True}, Recipe(("lasttoken",))),
    ],
)  # fmt: skip
def test_modules_say_how_a_vector_is_made(tmp_path, modules_in, kinds, pooling, expected):
    modules_in(tmp_path, *kinds, pooling=pooling)
    assert read_recipe(str(tmp_path)) == expected


def test_layers_stand_in_folders_beside_the_model(tmp_path, modules_in):
    modules_in(tmp_path, "Transformer", "Pooling", "Dense", pooling={"pooling_mode": "mean"})
    assert read_recipe(str(tmp_path)).dense == (str(tmp_path / "2_Dense"),)
    modules = json.loads((tmp_path / "modules.json").read_text())
    for path in ("../2_Dense", str(tmp_path / "2_Dense")):
        modules[2]["path"] = path
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(ModelError, match="cannot run module 2, Dense in folder"):
            read_recipe(str(tmp_path))


def test_a_folder_that_says_nothing_normalizes(tmp_path):
    assert read_recipe(str(tmp_path)) == Recipe((), normalize=True)


@pytest.mark.parametrize(
    ("kinds", "pooling", "reason"),
    [
        (("Transformer", "Pooling", "LSTM"), {"pooling_mode": "mean"}, "cannot run module 2, LSTM"),
        (("Transformer", "Pooling", "Normalize", "Dense"), {"pooling_mode": "mean"}, "cannot run module 3, Dense"),
        (("Transformer", "Dense"), None, "cannot run module 1, Dense"),
        (("Transformer", "Pooling"), {"pooling_mode": "median"}, "cannot pool by median"),
        (("Transformer", "Pooling"), {"pooling_mode": ["cls", 3]}, "cannot pool by cls and 3"),
        (("Transformer", "Pooling"), {"pooling_mode": "cls", "include_prompt": False}, "include_prompt is false"),
        (("Transformer", "Pooling"), {}, "cannot pool by nothing"),
        (("Transformer",), None, r"names no Pooling.*\(ColBERT\), are not served"),
        (("WordEmbeddings", "Pooling"), None, "cannot run module 0, WordEmbeddings"),
    ],
)  # fmt: skip
def test_other_modules_are_refused_by_name(tmp_path, modules_in, kinds, pooling, reason):
    modules_in(tmp_path, *kinds, pooling=pooling)
    with pytest.raises(ModelError, match=reason):
        read_recipe(str(tmp_path))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model_type": "t5", "architectures": ["T5Model"]}, "T5Model has an encoder and a decoder"),
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "ViTModel reads pixel_values, not text"),
        (
            {"model_type": "bert", "architectures": ["BertForSequenceClassification"],
             "sentence_transformers": {"activation_fn": "torch.nn.Tanh"}},
            "BertForSequenceClassification: config.json asks for the activation 'torch.nn.Tanh'",
        ),
    ],
)  # fmt: skip
def test_models_are_refused_by_name(tmp_path, values, reason):
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match=reason):
        outline(str(tmp_path), needs_weights=False, mode=None)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"num_labels": 1}, torch.sigmoid),
        ({"num_labels": 1, "problem_type": "regression"}, lambda found: found),
        ({"num_labels": 2, "problem_type": "multi_label_classification"}, torch.sigmoid),
        ({"num_labels": 2}, lambda found: torch.softmax(found, -1)),
        (
            {"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
            lambda found: found,
        ),
    ],
)  # fmt: skip
def test_activations_of_heads(values, expected):
    logits = torch.tensor([0.5, -2.0])
    found = activation_of(SimpleNamespace(**values), "Test")(logits)
    assert torch.equal(found, expected(logits))
