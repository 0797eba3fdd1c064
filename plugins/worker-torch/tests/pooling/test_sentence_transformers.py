"""Folders that sentence-transformers saved give the vectors and scores that it gives itself, in float32 (AF-10)."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tenonry import LLM
from tenonry.errors import ModelError, RequestError
from tenonry_worker_torch.pooling.outline import outline

pytestmark = pytest.mark.slow  # whole models

TEXTS = [
    "the cat sleeps on the mat",
    "who runs ?",
    "a red house",
    "the blue dog runs where the red cat sleeps " * 5,
    "dog",
]


def dense(width_in, width_out, **options):
    from sentence_transformers.sentence_transformer.modules import Dense

    torch.manual_seed(width_out)
    return Dense(width_in, width_out, **options)


# Name → (model of conftest, poolings, what follows them).
FOLDERS = {
    "mean": ("bert", "mean", lambda: ["Normalize"]),
    "sqrt": ("roberta", "mean_sqrt_len_tokens", list),
    "weighted": ("qwen3", "weightedmean", lambda: ["Normalize"]),
    "joined": ("modernbert", ["cls", "max", "mean", "lasttoken"], list),
    "layers": (
        "bert",
        "mean",
        lambda: [
            dense(32, 48, bias=False, activation_function=torch.nn.Identity()),
            dense(48, 24, activation_function=torch.nn.GELU()),
            "Normalize",
        ],
    ),
    "residual": ("bert", ["cls", "mean"], lambda: [dense(64, 40, use_residual=True)]),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(folders, tmp_path_factory):
    """Name → (folder, SentenceTransformer)."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    made = {}
    for name, (base, modes, rest) in FOLDERS.items():
        source, _ = folders[base]
        first = Transformer(str(source))
        after = [Normalize() if each == "Normalize" else each for each in rest()]
        model = SentenceTransformer(
            modules=[first, Pooling(32, pooling_mode=modes), *after], device="cpu"
        ).eval()
        folder = tmp_path_factory.mktemp(name)
        model.save(str(folder))
        made[name] = folder, model
    return made


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.slow
def test_vectors(saved, name):
    folder, model = saved[name]
    expected = model.encode(TEXTS)
    with LLM(model=str(folder), worker="auto", device="cpu", max_num_seqs=4) as llm:
        assert llm.info.tasks == {"embed": expected.shape[1]}
        found = np.stack([each.data for each in llm.embed(TEXTS)])
        cut = np.stack([each.data for each in llm.embed(TEXTS, normalize=True, dimensions=8)])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    wanted = model.encode(TEXTS, truncate_dim=8, normalize_embeddings=True)
    np.testing.assert_allclose(cut, wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["bert_head", "qwen3_head"])
def test_scores_of_pairs(folders, name):
    from sentence_transformers import CrossEncoder

    folder, _ = folders[name]
    long = TEXTS[3] * 2
    pairs = [*((TEXTS[0], text) for text in TEXTS[1:]), (long, TEXTS[0]), (long, long)]
    firsts, seconds = (list(texts) for texts in zip(*pairs, strict=True))
    with LLM(model=str(folder), worker="auto", device="cpu", max_num_seqs=4) as llm:
        whole = llm.score(TEXTS[0], TEXTS[1:])
        for keep in (-1, 15, 5):
            most = 64 if keep == -1 else keep
            expected = CrossEncoder(str(folder), device="cpu", max_length=most).predict(pairs)
            found = llm.score(firsts, seconds, truncate_prompt_tokens=keep)
            np.testing.assert_allclose(found, expected, atol=1e-5)
            if keep == -1:
                np.testing.assert_allclose(whole, expected[: len(whole)], atol=1e-5)
        with pytest.raises(RequestError, match=r"99 tokens.*give truncate_prompt_tokens=-1"):
            llm.score(long, TEXTS[0])
        for keep, words in (
            (4, "give at least 5"),
            (65, "1 to 64"),
            (True, "True is out of bounds: 1 to 64"),
        ):
            with pytest.raises(RequestError, match=words):
                llm.score(TEXTS[0], TEXTS[1], truncate_prompt_tokens=keep)


def test_texts_are_cut_where_sentence_transformers_cuts_them(saved, tmp_path):
    from sentence_transformers import SentenceTransformer

    shutil.copytree(saved["mean"][0], tmp_path / "cut")
    file = tmp_path / "cut" / "sentence_bert_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_seq_length": 9}))
    model = SentenceTransformer(str(tmp_path / "cut"), device="cpu")
    assert model.max_seq_length == 9
    with LLM(model=str(tmp_path / "cut"), device="cpu", max_num_seqs=4) as llm:
        assert llm.info.max_model_len == 9
        cut = [{"prompt": text, "truncate_prompt_tokens": -1} for text in TEXTS]
        found = np.stack([each.data for each in llm.embed(cut)])
        cosines = llm.score(TEXTS[3], TEXTS, truncate_prompt_tokens=-1)
    expected = model.encode(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(cosines, expected @ expected[3], atol=1e-5)


class TestBadLayers:
    """Errors of a Dense layer are raised before weights are read."""

    @pytest.fixture
    def layer(self, saved):
        """The folder of the model, that of its last Dense; whole again afterwards."""
        folder, _ = saved["layers"]
        inside = folder / "3_Dense"
        before = {file: file.read_bytes() for file in inside.iterdir()}
        yield folder, inside
        for file, data in before.items():
            file.write_bytes(data)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"in_features": 32}, "in_features=32, and what comes in has 48 numbers"),
            ({"in_features": "48"}, "in_features='48' must be a whole number"),
            ({"out_features": float("nan")}, "out_features=nan must be a whole number"),
            ({"out_features": 12}, r"tensor linear.bias is \(24,\), and its config.json says \(12,\)"),
            ({"bias": False}, "tensor linear.bias is .* says that there is none"),
            ({"activation_function": "os.system"}, "activation_function='os.system'"),
            ({"activation_function": "torch.nn.Bilinear"}, "knows torch.nn's Tanh"),
            ({"module_input_name": "token_embeddings"}, "not on those of its tokens"),
        ],
    )  # fmt: skip
    def test_configs(self, layer, change, reason):
        folder, inside = layer
        config = json.loads((inside / "config.json").read_text())
        (inside / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=reason):
            outline(str(folder), needs_weights=True, mode=None)

    def test_weights(self, layer):
        folder, inside = layer
        file = inside / "model.safetensors"
        whole = load_file(file)
        save_file({"linear.weight": whole["linear.weight"]}, file)
        with pytest.raises(ModelError, match=r"tensor linear\.bias is not there"):
            outline(str(folder), needs_weights=True, mode=None)
        file.write_bytes(file.read_bytes()[:-40])
        with pytest.raises(ModelError, match=r"model\.safetensors"):
            outline(str(folder), needs_weights=True, mode=None)
        file.unlink()
        with pytest.raises(ModelError, match="read from safetensors alone"):
            outline(str(folder), needs_weights=True, mode=None)


@pytest.mark.integration
def test_the_benchmark_compares_both(saved, tmp_path, capsys, monkeypatch):
    import argparse

    from tenonry_bench.embeddings import EmbeddingsBench

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder, _ = saved["mean"]
    verb = EmbeddingsBench()
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    words = f"--model {folder} --dtype float32 --device cpu --texts 6 --runs 2 --json {tmp_path}/r"
    assert verb.run(parser.parse_args(words.split())) == 0
    report = json.loads((tmp_path / "r").read_text())
    assert report["difference"] <= 1e-5
    assert report["ratio_cpu"]["min"] > 0
    assert "sentence-transformers" in capsys.readouterr().out
