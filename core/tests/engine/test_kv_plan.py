"""From free memory to a number of blocks: every branch of the plan (EC-5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.config import EngineConfig
from tenonry.engine.kv_plan import (
    CPU_POOL_BYTES,
    DEFAULT_BLOCK_SIZE,
    choose_block_size,
    fit_model_len,
    plan_kv_cache,
)
from tenonry.errors import ConfigError
from tenonry.kv_cache import (
    KVCacheConfig,
    KVCacheGroup,
    MemoryReport,
    longest_sequence,
    sequence_pages,
    window_blocks,
)

KIB, GIB = 1 << 10, 1 << 30


def group(
    bytes_per_token: int = 64, sizes: tuple[int, ...] = (16,), layers: int = 2, **fields: Any
) -> KVCacheGroup:
    names = tuple(f"layer.{i}" for i in range(layers))
    return KVCacheGroup(layers=names, bytes_per_token=bytes_per_token, block_sizes=sizes, **fields)


def config(**values: Any) -> EngineConfig:
    return EngineConfig(**{"model": "m", "max_num_seqs": 4, **values})


class TestBlockSize:
    def test_the_backends_first_choice_is_the_default(self):
        assert choose_block_size([group(sizes=(32, 16))], None) == 32

    def test_any_size_means_the_kernels_default(self):
        assert choose_block_size([group(sizes=()), group(sizes=())], None) == DEFAULT_BLOCK_SIZE

    def test_a_group_that_can_do_any_size_follows_the_others(self):
        assert choose_block_size([group(sizes=()), group(sizes=(64, 32))], None) == 64
        assert choose_block_size([group(sizes=(64, 32)), group(sizes=())], None) == 64

    def test_all_groups_must_agree(self):
        assert choose_block_size([group(sizes=(64, 32, 16)), group(sizes=(16, 32))], None) == 32

    def test_a_wanted_size_wins_if_possible(self):
        assert choose_block_size([group(sizes=(64, 16))], 16) == 16
        assert choose_block_size([group(sizes=())], 7) == 7

    def test_a_wanted_size_that_is_not_possible_is_refused_with_what_is(self):
        with pytest.raises(
            ConfigError, match=r"block_size=7 is not possible .* it can do \[64, 16\]"
        ):
            choose_block_size([group(sizes=(64, 16))], 7)

    @pytest.mark.parametrize("third", [(8,), (16,), ()])
    def test_groups_without_a_common_size_are_refused(self, third):
        groups = [group(sizes=(16,)), group(sizes=(32,)), group(sizes=third)]
        with pytest.raises(ConfigError, match="no block size in common"):
            choose_block_size(groups, None)
        with pytest.raises(ConfigError, match=r"no block size in common \(\[16\], \[32\]"):
            choose_block_size(groups, 16)

    @given(
        st.lists(
            st.lists(st.sampled_from([1, 8, 16, 32]), max_size=3, unique=True).map(tuple),
            min_size=1,
            max_size=4,
        )
    )
    def test_the_choice_is_possible_for_every_group(self, offers):
        groups = [group(sizes=sizes) for sizes in offers]
        common = set.intersection(
            *({1, 8, 16, 32} if not sizes else set(sizes) for sizes in offers)
        )
        try:
            chosen = choose_block_size(groups, None)
        except ConfigError:
            assert not common
            return
        assert all(not sizes or chosen in sizes for sizes in offers)


class TestNumberOfBlocks:
    """64 bytes per token and 16 tokens per block: one block is 1 KiB."""

    def plan(
        self, *memory: MemoryReport, max_model_len: int = 160, groups: Any = None, **values: Any
    ) -> int:
        reports = memory or (MemoryReport(100 * KIB),)
        per_rank = [groups or [group()]] * len(reports)
        return plan_kv_cache(per_rank, reports, config(**values), max_model_len).num_blocks

    def test_a_device_gives_all_that_is_free(self):
        assert self.plan(MemoryReport(100 * KIB + 5)) == 100

    def test_the_smallest_rank_decides(self):
        assert (
            self.plan(MemoryReport(100 * KIB), MemoryReport(70 * KIB), MemoryReport(90 * KIB)) == 70
        )

    def test_on_the_cpu_the_default_is_a_quarter_of_what_is_free(self):
        assert self.plan(MemoryReport(100 * KIB, is_host=True)) == 25

    def test_on_the_cpu_more_than_all_sequences_can_use_is_not_taken(self):
        assert self.plan(MemoryReport(GIB, is_host=True)) == 4 * 10

    def test_on_the_cpu_the_default_is_at_most_four_gib(self):
        free = MemoryReport(1 << 50, is_host=True)
        assert self.plan(free, max_model_len=1 << 30) == CPU_POOL_BYTES // KIB

    def test_exactly_as_many_bytes_as_asked_for(self):
        for is_host in (True, False):
            assert (
                self.plan(MemoryReport(100 * KIB, is_host), kv_cache_memory_bytes=7 * KIB + 1023)
                == 7
            )

    def test_exactly_as_many_blocks_as_asked_for(self):
        assert self.plan(num_gpu_blocks_override=123, kv_cache_memory_bytes=KIB) == 123

    def test_a_worker_without_a_cache_gets_what_could_ever_be_used(self):
        assert self.plan(MemoryReport(0), groups=[group(bytes_per_token=0)]) == 4 * 10

    def test_groups_share_blocks_of_the_size_of_the_largest(self):
        groups = [group(), group(bytes_per_token=192)]
        assert self.plan(MemoryReport(100 * KIB), groups=groups) == 33

    def test_on_the_cpu_all_groups_of_all_sequences_count(self):
        """Of 160 tokens in steps of 32, a window of 8 holds at most four blocks."""
        groups = [group(), group(kind="sliding", window=8)]
        free = MemoryReport(GIB, is_host=True)
        planned = self.plan(free, groups=groups, max_num_batched_tokens=32)
        assert planned == 4 * (10 + 4)


class TestStates:
    """A block is 1 KiB, the state of one sequence 2 KiB, and at most four sequences run."""

    def plan(self, *memory: MemoryReport, groups: Any = None, **values: Any) -> KVCacheConfig:
        reports = memory or (MemoryReport(100 * KIB),)
        states = group(kind="recurrent", bytes_per_token=0, state_bytes=2 * KIB, sizes=())
        per_rank = [groups or [group(), states]] * len(reports)
        return plan_kv_cache(per_rank, reports, config(**values), 160)

    def test_states_and_snapshots_come_out_of_what_is_free(self):
        """Of 100 KiB the states take 8; an eighth of the rest holds 5 snapshots, and 82 blocks are left."""
        planned = self.plan()
        assert planned.num_state_slots == 5
        assert planned.num_blocks == 92 - 10

    def test_four_snapshots_for_each_sequence_are_enough_by_default(self):
        planned = self.plan(MemoryReport(GIB))
        assert planned.num_state_slots == 16
        assert planned.num_blocks == (GIB - 8 * KIB - 32 * KIB) // KIB

    def test_the_smallest_rank_decides(self):
        assert self.plan(MemoryReport(GIB), MemoryReport(100 * KIB)).num_state_slots == 5

    def test_a_rank_without_such_a_layer_does_not_count(self):
        empty = group(kind="recurrent", bytes_per_token=0, layers=0, sizes=())
        states = group(kind="recurrent", bytes_per_token=0, state_bytes=2 * KIB, sizes=())
        planned = plan_kv_cache(
            [[group(), empty], [group(), states]], [MemoryReport(100 * KIB)] * 2, config(), 160
        )
        assert planned.num_state_slots == 5
        assert planned.num_blocks == 82

    def test_on_the_cpu_a_quarter_of_what_the_states_leave(self):
        """100 − 8 KiB are free; 23 are the pool, and one snapshot fits into an eighth of it."""
        planned = self.plan(MemoryReport(100 * KIB, is_host=True))
        assert planned.num_state_slots == 1
        assert planned.num_blocks == 21

    def test_as_many_bytes_as_asked_for(self):
        planned = self.plan(state_cache_memory_bytes=9 * KIB, kv_cache_memory_bytes=50 * KIB)
        assert planned.num_state_slots == 4
        assert planned.num_blocks == 50 - 8

    @pytest.mark.parametrize(
        "off", [{"state_cache_memory_bytes": 0}, {"enable_prefix_caching": False}]
    )
    def test_off(self, off):
        planned = self.plan(**off)
        assert planned.num_state_slots == 0
        assert planned.num_blocks == 92

    @pytest.mark.parametrize("budget", [2 * KIB - 1, 92 * KIB + 1])
    def test_a_budget_below_one_snapshot_or_beyond_the_cache_is_refused(self, budget):
        """Also for states alone, whose blocks cost nothing and cannot fail to fit."""
        alone = group(kind="recurrent", bytes_per_token=0, state_bytes=2 * KIB, sizes=())
        bounds = rf"state_cache_memory_bytes={budget} is not between 2048, .* and {92 * KIB}, .*; 0"
        for groups in (None, [alone]):
            with pytest.raises(ConfigError, match=bounds):
                self.plan(groups=groups, state_cache_memory_bytes=budget)

    def test_states_that_do_not_fit_name_the_number_that_does(self):
        with pytest.raises(
            ConfigError, match=r"max_num_seqs=4 .* needs 2048 bytes and 7168 are free; .* at most 3"
        ):
            self.plan(MemoryReport(7 * KIB))

    def test_a_model_of_states_alone_has_blocks_that_cost_nothing(self):
        states = group(kind="recurrent", bytes_per_token=0, state_bytes=2 * KIB, sizes=())
        planned = self.plan(groups=[states])
        assert planned.num_blocks == 4 * 10
        assert planned.num_state_slots == 5

    def test_an_opaque_group_has_no_snapshots(self):
        """Its worker keeps whole sequences; memory for each is set aside."""
        opaque = group(kind="opaque", state_bytes=2 * KIB)
        planned = self.plan(groups=[opaque])
        assert planned.num_state_slots == 0
        assert planned.num_blocks == 92

    def test_a_model_without_states_has_none(self):
        assert self.plan(groups=[group()], state_cache_memory_bytes=GIB).num_state_slots == 0


class TestRefusals:
    def test_ranks_must_report_both(self):
        for groups, memory in ([], []), ([[group()]], []), ([], [MemoryReport(1)]):
            with pytest.raises(
                ConfigError, match=f"{len(groups)} ranks .* {len(memory)} reported memory"
            ):
                plan_kv_cache(groups, memory, config(), 16)

    def test_ranks_must_agree_on_the_groups(self):
        memory = [MemoryReport(GIB)] * 2
        for other, text in (
            (
                [group(kind="sliding", window=8)],
                r"rank 1 reports .*\('sliding', 8\).*, rank 0 reports .*\('full', 0\)",
            ),
            ([group(), group()], r"rank 1 reports .*\('full', 0\), \('full', 0\)"),
        ):
            with pytest.raises(ConfigError, match=text):
                plan_kv_cache([[group()], other], memory, config(), 16)

    def test_ranks_of_a_pipeline_hold_different_layers(self):
        """The blocks are those that the rank with the most bytes per token can hold."""
        few, many = group(layers=1, bytes_per_token=64), group(layers=3, bytes_per_token=192)
        memory = [MemoryReport(16 * 1024)] * 2
        plan = plan_kv_cache(
            [[few], [many]], memory, config(kv_cache_memory_bytes=192 * 16 * 5), 16
        )
        assert plan.num_blocks == 5
        assert plan.groups == (few,)

    def test_no_memory_for_one_block_names_both_numbers(self):
        with pytest.raises(
            ConfigError, match=r"1023 bytes are free, one block of 16 tokens needs 1024"
        ):
            plan_kv_cache([[group()]], [MemoryReport(1023)], config(), 16)

    def test_a_wish_too_small_for_one_block_is_named(self):
        with pytest.raises(
            ConfigError, match=r"kv_cache_memory_bytes=1000 .* one block of 16 tokens needs 1024"
        ):
            plan_kv_cache([[group()]], [MemoryReport(GIB)], config(kv_cache_memory_bytes=1000), 16)

    def test_a_length_that_the_pool_cannot_hold_is_refused_with_both_numbers(self):
        with pytest.raises(
            ConfigError, match=r"max_model_len=33 does not fit: the KV cache holds 32 tokens"
        ):
            plan_kv_cache([[group()]], [MemoryReport(2 * KIB)], config(max_model_len=33), 33)


class TestWindows:
    """Blocks of 16 tokens; full and sliding groups of one shared pool."""

    @pytest.mark.parametrize(
        ("window", "chunk", "blocks"),
        [(1, 1, 1), (1, 16, 2), (2, 1, 2), (16, 1, 2), (17, 1, 2), (18, 1, 3), (16, 17, 3)],
    )
    def test_what_a_window_and_a_chunk_touch(self, window, chunk, blocks):
        touched = {
            (start + chunk - 1) // 16 - max(0, start - window + 1) // 16 + 1 for start in range(200)
        }
        assert max(touched) == blocks == window_blocks(window, 16, chunk)

    @given(
        st.lists(st.sampled_from([0, 1, 7, 16, 40, 200]), min_size=1, max_size=4),
        st.integers(1, 60),
        st.integers(1, 70),
        st.integers(1, 500),
    )
    def test_the_longest_sequence_is_the_longest(self, windows, pages, chunk, most):
        groups = [group(kind="sliding" if each else "full", window=each) for each in windows]
        longest = longest_sequence(groups, pages, 16, chunk, most)
        fitting = [
            length
            for length in range(1, most + 1)
            if sequence_pages(groups, length, 16, chunk) <= pages
        ]
        assert longest == max(fitting, default=0)

    def test_windows_alone_hold_sequences_of_any_length(self):
        """Three blocks hold the window of 16 and 16 tokens more, wherever they begin."""
        planned = plan_kv_cache(
            [[group(kind="sliding", window=16)]],
            [MemoryReport(3 * KIB)],
            config(max_num_batched_tokens=16),
            100_000,
        )
        assert planned.num_blocks == 3
        assert planned.max_model_len == 100_000

    def test_beside_full_attention_a_window_costs_a_constant(self):
        groups = [group(), group(kind="sliding", window=16), group(kind="sliding", window=16)]
        small = config(max_num_batched_tokens=16)
        planned = plan_kv_cache([groups], [MemoryReport(26 * KIB)], small, 100_000)
        assert planned.max_model_len == 20 * 16

    def test_states_alone_count_tokens_in_blocks(self):
        states = group(kind="recurrent", bytes_per_token=0, state_bytes=8, sizes=())
        assert sequence_pages([states], 33, 16, 8) == 3

    def test_a_pool_that_has_no_block_for_some_group_is_refused(self):
        groups = [[group(), group(kind="sliding", window=16)]]
        with pytest.raises(ConfigError, match=r"1024 bytes are free, one block .* needs 2048"):
            plan_kv_cache(groups, [MemoryReport(1024)], config(), 16)
        with pytest.raises(ConfigError, match=r"num_gpu_blocks_override=1 .* at least 2"):
            plan_kv_cache(groups, [MemoryReport(GIB)], config(num_gpu_blocks_override=1), 16)


class TestLongestSequence:
    def test_the_models_own_length_is_cut_to_the_pool(self):
        assert fit_model_len(32, None, 100) == 32
        assert fit_model_len(320, None, 100) == 100

    def test_a_wanted_length_is_kept(self):
        assert fit_model_len(32, 32, 32) == 32

    def test_the_plan_carries_everything(self):
        planned = plan_kv_cache(
            [[group(), group(kind="sliding", window=8)]], [MemoryReport(8 * KIB)], config(), 100
        )
        assert planned.num_blocks == 8
        assert planned.block_size == 16
        assert planned.max_model_len == 64
        assert [each.window for each in planned.groups] == [0, 8]
