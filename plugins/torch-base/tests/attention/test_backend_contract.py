"""The suite of attention backends, over `sdpa` and over broken ones."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tenonry_testkit.attention_backend import AttentionBackendContract
from tenonry_testkit.outcomes import failing_tests
from tenonry_torch_base.attention.sdpa import SdpaBackend

PROMPT = "test_a_prompt_attends_to_itself"
CHUNKS = "test_a_prompt_may_come_in_chunks"
TOGETHER = "test_rows_decode_together"
AGAIN = "test_rows_are_used_again"
FEWER = "test_the_last_layer_may_have_fewer_queries"
CACHES = "test_every_layer_has_a_cache"
MIXED = "test_steps_mix_prompts_and_decoding"


class TestSdpa(AttentionBackendContract):
    attention_backend = "sdpa"


class NoName(SdpaBackend):
    caught_by = "test_it_has_a_name_and_a_version"
    name = ""


class ForgetsALayer(SdpaBackend):
    caught_by = CACHES

    def allocate(self, num_blocks, block_size):
        caches = super().allocate(num_blocks, block_size)
        caches.popitem()
        return caches


class SharesCaches(SdpaBackend):
    caught_by = CACHES

    def allocate(self, num_blocks, block_size):
        caches = super().allocate(num_blocks, block_size)
        return dict.fromkeys(caches, next(iter(caches.values())))


class ScalesTwice(SdpaBackend):
    caught_by = PROMPT

    def forward(self, layer, query, key, value, plan, both=None):
        return super().forward(layer, query * layer.spec.scaling, key, value, plan, both)


class SwapsHeads(SdpaBackend):
    caught_by = PROMPT

    def forward(self, layer, query, key, value, plan, both=None):
        return super().forward(layer, query, key, value, plan, both).flip(1)


class WritesKeysAsValues(SdpaBackend):
    caught_by = PROMPT

    def forward(self, layer, query, key, value, plan, both=None):
        return super().forward(layer, query, key, key, plan)


class ForgetsEarlierChunks(SdpaBackend):
    caught_by = CHUNKS

    def plan(self, batch):
        zeros = np.zeros_like(batch.start)
        return super().plan(dataclasses.replace(batch, start=zeros, seq_lens=batch.num_tokens))


class WritesOnePlaceOn(SdpaBackend):
    caught_by = CHUNKS

    def plan(self, batch):
        return super().plan(dataclasses.replace(batch, slot_mapping=batch.slot_mapping + 1))


class SortsBlocks(SdpaBackend):
    caught_by = CHUNKS

    def plan(self, batch):
        return super().plan(dataclasses.replace(batch, block_table=np.sort(batch.block_table, 1)))


class MixesRows(SdpaBackend):
    caught_by = TOGETHER

    def forward(self, layer, query, key, value, plan, both=None):
        return super().forward(layer, query, key, value, plan, both).roll(1, 0)


class ReadsFirstRows(SdpaBackend):
    caught_by = TOGETHER

    def plan(self, batch):
        first = np.arange(len(batch.row), dtype=np.int32)
        return super().plan(dataclasses.replace(batch, row=first))


class MissesTheNewToken(SdpaBackend):
    caught_by = TOGETHER

    def forward(self, layer, query, key, value, plan, both=None):
        if len(key) == 3:
            key = torch.zeros_like(key)
        return super().forward(layer, query, key, value, plan)


class SortsRows(SdpaBackend):
    caught_by = MIXED

    def plan(self, batch):
        order = np.argsort(batch.row)
        fields = ("row", "num_tokens", "start", "seq_lens", "generation")
        return super().plan(
            dataclasses.replace(batch, **{name: getattr(batch, name)[order] for name in fields})
        )


class KeepsTables(SdpaBackend):
    caught_by = AGAIN
    known = None

    def plan(self, batch):
        if self.known is None:
            self.known = batch.block_table.copy()
        new = self.known == 0
        self.known[new] = batch.block_table[new]
        return super().plan(dataclasses.replace(batch, block_table=self.known))


class IgnoresPruning(SdpaBackend):
    caught_by = FEWER

    def plan(self, batch):
        return super().plan(batch) if batch.full_plan is None else batch.full_plan


class WritesQueriesOnly(SdpaBackend):
    caught_by = FEWER

    def forward(self, layer, query, key, value, plan, both=None):
        if len(query) != len(key):
            key = torch.cat([torch.zeros_like(key[: -len(query)]), key[-len(query) :]])
        return super().forward(layer, query, key, value, plan)


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("attention_backend")
def test_broken_ones_are_caught(broken):
    suite = type("Suite", (AttentionBackendContract,), {"attention_backend": broken})
    assert broken.caught_by in failing_tests(suite, [broken.caught_by])


def test_every_test_of_the_suite_catches_one():
    tests = {name for name in dir(AttentionBackendContract) if name.startswith("test_")}
    assert tests == {broken.caught_by for broken in BROKEN}
