"""Vectors and scores of an engine against the model of transformers, one prompt at a time, in float32."""

from __future__ import annotations

import asyncio
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tenonry import LLM, AsyncLLM, EngineConfig, PoolingParams, SamplingParams
from tenonry.errors import ModelError, RequestError

pytestmark = pytest.mark.slow  # whole models

LENGTHS = (5, 1, 40, 17, 64)


@pytest.fixture(scope="module")
def prompts():
    generator = np.random.default_rng(0)
    return [generator.integers(4, 96, length).tolist() for length in LENGTHS]


def engine(folder, worker="pooling", **config):
    """Steps of 16 tokens: longer prompts come in chunks, and meet others."""
    return LLM(
        model=str(folder),
        worker=worker,
        device="cpu",
        **{"max_num_seqs": 4, "max_num_batched_tokens": 16} | config,
    )


def given(prompts):
    return [{"prompt_token_ids": ids} for ids in prompts]


@torch.inference_mode()
def states(model, ids, **inputs):
    return model(torch.tensor([ids]), **inputs).last_hidden_state[0]


@torch.inference_mode()
def logits(model, ids, **inputs):
    return model(torch.tensor([ids]), **inputs).logits[0].numpy()


def unit(vector):
    return torch.nn.functional.normalize(vector, dim=0).numpy()


POOLED = {
    "mean": lambda found: found.mean(0),
    "cls": lambda found: found[0],
    "lasttoken": lambda found: found[-1],
}


@pytest.mark.parametrize("mode", POOLED)
@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
@pytest.mark.slow
@pytest.mark.nightly_after(3)
def test_vectors_of_encoders_are_those_of_transformers(folders, prompts, name, mode):
    folder, model = folders[name]
    with engine(folder, worker={"name": "pooling", "options": {"pooling": mode}}) as llm:
        found = llm.embed(given(prompts))
        plain = llm.embed(given(prompts), normalize=False)
    for ids, each, unscaled in zip(prompts, found, plain, strict=True):
        expected = POOLED[mode](states(model, ids))
        np.testing.assert_allclose(each.data, unit(expected), atol=1e-5)
        np.testing.assert_allclose(unscaled.data, expected.numpy(), atol=1e-5)
        assert each.data.dtype == np.float32


def test_a_decoder_with_modules_gives_its_last_state_also_cut(folders, prompts):
    folder, model = folders["qwen3"]
    with engine(folder, worker="auto") as llm:
        assert llm.info.tasks == {"embed": 32}
        found = llm.embed(given(prompts))
        cut = llm.embed(given(prompts), dimensions=8)
    for ids, each, short in zip(prompts, found, cut, strict=True):
        expected = states(model, ids)[-1]
        np.testing.assert_allclose(each.data, unit(expected), atol=1e-5)
        np.testing.assert_allclose(short.data, unit(expected[:8]), atol=1e-5)


@pytest.mark.parametrize("name", ["bert_head", "qwen3_head"])
def test_a_head_of_one_label_scores_pairs(folders, name):
    folder, model = folders[name]
    second = ["the cat sleeps", "red", "the dog runs on the mat"]
    with engine(folder, worker="auto") as llm:
        assert llm.info.tasks == {"score": 1, "classify": 1}
        scores = llm.score("where is the cat ?", second)
        tokenizer = llm.get_tokenizer()
    for text, score in zip(second, scores, strict=True):
        encoded = tokenizer("where is the cat ?", text, return_token_type_ids=True)
        types = {"token_type_ids": torch.tensor([encoded["token_type_ids"]])}
        expected = logits(model, encoded["input_ids"], **(types if name == "bert_head" else {}))
        assert score == pytest.approx(1 / (1 + np.exp(-expected[0])), abs=1e-5)
    assert len(set(scores)) == len(scores)


def test_a_head_of_several_labels_gives_a_probability_of_each(folders, prompts):
    folder, model = folders["bert_labels"]
    with engine(folder) as llm:
        found = llm.classify(given(prompts))
        raw = llm.encode(given(prompts), PoolingParams(task="classify", normalize=False))
    for ids, each, unscaled in zip(prompts, found, raw, strict=True):
        expected = logits(model, ids)
        np.testing.assert_allclose(unscaled.data, expected, atol=1e-5)
        np.testing.assert_allclose(each.data, np.exp(expected) / np.exp(expected).sum(), atol=1e-5)


def test_texts_that_are_alike_have_a_cosine_of_one(folders):
    with engine(folders["bert"][0], worker="auto") as llm:
        same, other = llm.score("the cat", ["the cat", "a red house"])
        vectors = [each.data for each in llm.embed(["the cat", "a red house"])]
    assert same == pytest.approx(1, abs=1e-6)
    assert other == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)


def test_concurrent_requests_to_an_engine_in_its_own_process(folders, prompts, forked_children):
    folder, model = folders["bert"]
    llm = AsyncLLM(EngineConfig(model=str(folder), device="cpu", max_num_seqs=4))

    async def ask():
        calls = [
            llm.encode({"prompt_token_ids": ids}, PoolingParams(), str(place))
            for place, ids in enumerate(prompts)
        ]
        found = await asyncio.gather(*calls)
        with pytest.raises(RequestError, match="task 'score' is not served"):
            await llm.score("a cat", "a dog", "pair")
        with pytest.raises(RequestError, match="does not generate"):
            await anext(llm.generate([5], SamplingParams(), "tokens"))
        return found, await llm.get_supported_tasks(), llm.num_unfinished_requests

    try:
        found, tasks, left = asyncio.run(ask())
    finally:
        llm.shutdown()
    assert tasks == ("embed",)
    assert left == 0
    for ids, each in zip(prompts, found, strict=True):
        np.testing.assert_allclose(each.data, unit(states(model, ids).mean(0)), atol=1e-5)


def test_a_generating_model_refuses_pooling_whichever_worker_auto_has():
    with LLM(model="demo", max_num_seqs=4, max_model_len=64) as llm:
        assert llm.info.tasks == {}
        with pytest.raises(
            RequestError,
            match=r"task 'embed' is not served: this model generates.*--worker pooling",
        ):
            llm.embed(["a cat"])


def test_long_texts_are_cut_as_transformers_cuts_them_where_that_is_asked(folders, capsys):
    folder, model = folders["bert"]
    text = " ".join(["the cat runs on a red house"] * 12)
    with engine(folder) as llm:
        tokenizer = llm.get_tokenizer()
        with pytest.raises(RequestError, match=r"has 86 tokens.*give truncate_prompt_tokens=-1"):
            llm.embed([text])
        for count, length in ((-1, 64), (20, 20), (3, 3)):
            wanted = tokenizer(text, truncation=True, max_length=length)["input_ids"]
            (found,) = llm.embed({"prompt": text, "truncate_prompt_tokens": count}, use_tqdm=True)
            assert found.prompt_token_ids == wanted
            assert (wanted[0], wanted[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
            np.testing.assert_allclose(found.data, unit(states(model, wanted).mean(0)), atol=1e-5)
        assert "1/1 [" in capsys.readouterr().err
        ids = tokenizer(text)["input_ids"]
        (cut,) = llm.embed({"prompt_token_ids": ids, "truncate_prompt_tokens": -1}, use_tqdm=False)
        assert cut.prompt_token_ids == ids[:64]
        assert capsys.readouterr().err == ""
        with pytest.raises(RequestError, match="=2 leaves nothing of the text"):
            llm.embed({"prompt": text, "truncate_prompt_tokens": 2})


def test_positions_of_roberta_end_before_its_table(folders):
    with (
        engine(folders["roberta"][0]) as llm,
        pytest.raises(RequestError, match="max_model_len=64"),
    ):
        llm.embed([[5] * 65])


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_prompt_gets_the_rotary_table_of_its_own_length(kind, prompts, tmp_path):
    """transformers picks it by the longest prompt of a batch, and `dynamic` keeps the last one."""
    import transformers

    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    if kind == "longrope":
        factors = {"short_factor": [1.0] * 4, "long_factor": [1.0, 3.0, 6.0, 9.0]}
        rope |= factors | {"original_max_position_embeddings": 16}
    config = transformers.Qwen3Config(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64 if kind == "longrope" else 16,
        rope_parameters=rope, pad_token_id=0,
    )  # fmt: skip
    model = transformers.Qwen3Model(config).eval()
    model.save_pretrained(tmp_path)
    with engine(tmp_path, skip_tokenizer_init=True, max_num_batched_tokens=256) as llm:
        outputs = llm.embed(given(prompts))
    for ids, output in zip(prompts, outputs, strict=True):
        fresh = transformers.Qwen3Model.from_pretrained(tmp_path).eval()
        assert np.allclose(output.data, unit(states(fresh, ids)[-1]), atol=1e-5)


def test_what_the_model_does_not_do_is_refused_by_name(folders):
    with engine(folders["bert"][0]) as llm:
        with pytest.raises(RequestError, match=r"does not generate, it serves embed.*LLM\.embed"):
            llm.generate([[5]], SamplingParams())
        with pytest.raises(RequestError, match=r"'classify' is not served.*serves embed"):
            llm.classify([[5]])
        with pytest.raises(RequestError, match=r"dimensions=33: .* 1 to 32 numbers"):
            llm.embed([[5]], dimensions=33)
        with pytest.raises(RequestError, match="the prompt has 65 tokens"):
            llm.embed([[5] * 65])
        with pytest.raises(RequestError, match="max_tokens=2"):
            llm.generate([[5]], SamplingParams(pooling=PoolingParams(), max_tokens=2))


def test_a_weight_with_nan_is_named(folders, tmp_path):
    copy = shutil.copytree(folders["bert"][0], tmp_path / "damaged")
    weights = load_file(copy / "model.safetensors")
    name = next(name for name in weights if name.endswith("output.dense.weight"))
    weights[name][0, 0] = float("nan")
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=rf"computes NaN: .*{name} \(1 of \d+ values\)"):
        engine(copy)
