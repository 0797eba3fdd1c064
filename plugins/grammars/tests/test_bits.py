"""Masks of tokens are read bit by bit, whatever the words hold."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tenonry_grammars.bits import NOTHING, WORD_BITS, allow, allowed_ids, forbid, num_words

MAX_WORDS = 6
IDS = st.sets(st.integers(0, MAX_WORDS * WORD_BITS - 1))


@given(IDS, IDS)
def test_what_is_allowed_and_not_forbidden_is_found_in_order(
    allowed: set[int], forbidden: set[int]
):
    mask = np.full(MAX_WORDS, NOTHING, np.int32)
    allow(mask, allowed)
    assert allowed_ids(mask).tolist() == sorted(allowed)
    forbid(mask, forbidden)
    assert allowed_ids(mask).tolist() == sorted(allowed - forbidden)


def test_a_mask_has_a_word_for_each_32_ids_begun():
    assert [num_words(size) for size in (1, 32, 33, 151_936)] == [1, 1, 2, 4748]
