from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_driver import two_threads

from tenonry_torch_base.sampler import choose
from tenonry_torch_base.sampler.choose import Truncation, draw, greedy, largest, row_sums
from tenonry_torch_base.sampler.randomness import uniforms


def truncated_weights(logits, top_k, top_p, min_p):
    cut = Truncation(
        np.array(top_k, np.int64), np.array(top_p, np.float32), np.array(min_p, np.float32)
    )
    return choose.truncated_weights(logits, cut, torch.from_numpy)


@given(seed=st.integers(0, 10_000), vocab=st.integers(1, 2000), rows=st.integers(1, 5))
def test_draw_inverts_the_cumulative_sum(seed, vocab, rows):
    generator = np.random.default_rng(seed)
    weights = generator.random((rows, vocab)).astype(np.float32) * (
        generator.random((rows, vocab)) < 0.3
    )
    weights[:, generator.integers(vocab)] = 0.5
    numbers = generator.random(rows) * 0.998 + 0.001
    ids = draw(torch.from_numpy(weights), torch.from_numpy(numbers)).numpy()
    sums = weights.astype(np.float64).cumsum(-1)
    for row in range(rows):
        goal = numbers[row] * sums[row, -1]
        assert weights[row, ids[row]] > 0
        assert (
            sums[row, ids[row]] - weights[row, ids[row]] - 1e-6
            <= goal
            <= sums[row, ids[row]] + 1e-6
        )


def test_draw_never_leaves_the_possible_tokens_at_the_ends():
    weights = torch.zeros(2, 1500)
    weights[:, 700] = 1e-20
    weights[:, 701] = 1.0
    numbers = torch.tensor([1e-30, 1 - 2**-54], dtype=torch.float64)
    assert set(draw(weights, numbers).tolist()) <= {700, 701}


def test_a_nucleus_wider_than_the_candidates_is_sorted_whole(monkeypatch):
    """A flat distribution: 90 % of the mass needs 90 % of the tokens."""
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0)) * 0.01
    arguments = ([0, 0, 7], [0.9, 1.0, 0.5], [0.0] * 3)
    wide = truncated_weights(logits, *arguments)
    monkeypatch.setattr(choose, "CANDIDATES", 16)
    narrow = truncated_weights(logits, *arguments)
    assert torch.equal(wide, narrow)
    assert (wide > 0).sum(-1).tolist()[1:] == [500, 4]
    assert 440 <= int((wide[0] > 0).sum()) <= 450


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    vocab=st.sampled_from([100, 513, 5001, 40_001]),
    rows=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 40, 700]),
            st.sampled_from([1.0, 0.9, 0.3]),
            st.sampled_from([0.0, 0.01]),
        ),
        min_size=2,
        max_size=6,
    ),
)
@two_threads()
@pytest.mark.slow
def test_no_bit_of_a_row_depends_on_the_others(seed, vocab, rows):
    """Neither on their number nor on their parameters (WK-14)."""
    logits = torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(seed)) * 4
    numbers = torch.linspace(0.001, 0.999, len(rows), dtype=torch.float64)
    columns = list(zip(*rows, strict=True))

    def chosen(lines):
        weights = truncated_weights(logits[lines], *(column[lines] for column in columns))
        return weights, row_sums(weights), draw(weights, numbers[lines])

    together = chosen(slice(0, len(rows)))
    for line in range(len(rows)):
        alone = chosen(slice(line, line + 1))
        for found, wanted in zip(alone, together, strict=True):
            assert torch.equal(found[0], wanted[line])


@given(
    seed=st.integers(0, 10_000),
    vocab=st.sampled_from([1, 63, 64, 1000, 4096, 5001]),
    share=st.floats(0, 1),
)
def test_the_largest_are_found_through_chunks(seed, vocab, share):
    """Rounded values, so that ties fall on borders of chunks too."""
    values = (
        torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed))
        .mul(4)
        .round()
        .div(4)
        .exp()
    )
    count = max(1, int(share * min(vocab, 40)))
    assert torch.equal(largest(values, count), values.sort(-1, descending=True).values[:, :count])


def test_ties_stay_together_so_the_order_of_sorting_cannot_matter():
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    kept = truncated_weights(logits, [2], [1.0], [0.0])
    assert (kept[0] > 0).tolist() == [False, True, True, True, True, False]


@given(
    seed=st.integers(0, 10_000),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
)
def test_greedy_is_argmax(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 33, generator=generator)
    logits[1] = -logits[1].abs() - 1
    logits = logits.to(dtype)
    ids, is_nan = greedy(logits)
    assert ids.tolist() == logits.float().numpy().argmax(-1).tolist()
    assert not is_nan.any()
    strided = torch.stack([logits, logits], 1)[:, 0]
    assert greedy(strided)[0].tolist() == ids.tolist()


def test_uniforms_depend_on_seed_position_and_draw_and_nothing_else():
    seeds = np.arange(2000, dtype=np.uint64)
    position = np.full(2000, 3, np.int32)
    first = uniforms(seeds, position)
    assert np.array_equal(first[5:9], uniforms(seeds[5:9], position[5:9]))
    for other in (
        uniforms(seeds, position + 1),
        uniforms(seeds, position, draw=1),
        uniforms(seeds + np.uint64(1), position),
    ):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.1
    along = uniforms(np.full(2000, 17, np.uint64), np.arange(2000, dtype=np.int32))
    for numbers in (first, along):
        assert ((numbers > 0) & (numbers < 1)).all()
        assert np.abs(np.histogram(numbers, 10, (0, 1))[0] - 200).max() < 60
