"""Defaults out of generation_config.json: counterparts applied, the rest named in one line of the log."""

from __future__ import annotations

import pytest

from tenonry.sampling_params import MAX_LOGIT_BIAS, SamplingParams
from tenonry_hf_hub.sampling_defaults import NO_COUNTERPART, default_sampling

SAMPLED = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1}


def defaults(**generation):
    return default_sampling(generation, vocab_size=100, end_ids=(7,))


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"do_sample": True, **SAMPLED}, SAMPLED),
        ({"do_sample": False, **SAMPLED}, {"temperature": 0.0}),
        (SAMPLED, {}),
        ({"do_sample": None, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"max_new_tokens": 64, "min_new_tokens": 32}, {"max_tokens": 64, "min_tokens": 32}),
        ({"suppress_tokens": [3, -1, 100, 2]}, {"logit_bias": {2: -100.0, 3: -100.0}}),
        ({"bad_words_ids": [[5], [7]]}, {"logit_bias": {5: -100.0}}),
        (
            {"bad_words_ids": [[5]], "suppress_tokens": [6]},
            {"logit_bias": {5: -100.0, 6: -100.0}},
        ),
        ({"num_beams": 1, "no_repeat_ngram_size": 0, "typical_p": 1.0, "guidance_scale": None}, {}),
        ({"max_length": 20, "pad_token_id": 0, "use_cache": True, "top_h": None}, {}),
    ],
    ids=str,
)  # fmt: skip
def test_counterparts(generation, expected, caplog):
    assert defaults(**generation) == expected
    SamplingParams(**expected)
    assert not caplog.text


@pytest.mark.parametrize(
    ("generation", "named"),
    [
        ({"num_beams": 4}, "num_beams=4"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size=3"),
        ({"bad_words_ids": [[5, 6]]}, "bad_words_ids of several tokens"),
        ({"begin_suppress_tokens": [220]}, "begin_suppress_tokens=[220]"),
        ({"forced_eos_token_id": 2}, "forced_eos_token_id=2"),
        ({"sequence_bias": [[[5], -1.0]]}, "sequence_bias"),
    ],
    ids=str,
)
def test_names_what_has_no_counterpart(generation, named, caplog):
    assert defaults(**generation) == {}
    (record,) = caplog.records
    assert named in record.getMessage()


def test_one_line_names_all(caplog):
    defaults(**dict.fromkeys(NO_COUNTERPART, 5))
    (record,) = caplog.records
    assert all(f"{key}=5" in record.getMessage() for key in NO_COUNTERPART)


def test_more_bans_than_a_request_may_have(caplog):
    many = list(range(MAX_LOGIT_BIAS + 1))
    found = default_sampling(
        {"suppress_tokens": many, "bad_words_ids": [[1]]}, vocab_size=10**6, end_ids=()
    )
    assert found == {"logit_bias": {1: -100.0}}
    assert f"suppress_tokens of {len(many)} tokens" in caplog.text


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"do_sample": True, "top_p": 7, "top_k": 3}, {"top_k": 3}),
        ({"max_new_tokens": "many", "min_new_tokens": 999}, {}),
        ({"suppress_tokens": "all", "bad_words_ids": {"a": 1}}, {}),
        ({"suppress_tokens": [True, "x", 1.5]}, {}),
    ],
)
def test_values_out_of_bounds_are_left_out(generation, expected):
    assert defaults(**generation) == expected


def test_rules_that_the_worker_runs_itself(caplog):
    generation = {"suppress_tokens": [3], "no_repeat_ngram_size": 2, "do_sample": False}
    found = default_sampling(generation, vocab_size=100, own_rules=True)
    assert found == {"temperature": 0.0}
    assert not caplog.text
