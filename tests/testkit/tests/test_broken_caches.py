"""The suite detects prefix caches and transfers with one defect each, by the test that must name it."""

from __future__ import annotations

import secrets
from typing import ClassVar

import pytest
from hypothesis import Phase

from tenonry.errors import ContractViolation
from tenonry_kvcache import KVCacheManager
from tenonry_kvcache.hashing import BlockHasher
from tenonry_kvcache.pool import EvictionQueue
from tenonry_kvcache.snapshots import StateSnapshots
from tenonry_kvcache.tables import BlockTables
from tenonry_kvcache.transfers import Transfers
from tenonry_kvcache.windows import WindowTables
from tenonry_scheduling import BaseScheduler
from tenonry_testkit.fakes import FakeKVError, ReferenceScheduler
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.rules import RuleBroken
from tenonry_testkit.scheduler import SchedulerContract


class WithParts(KVCacheManager):
    """A block manager of which some parts are replaced: by name, in `tenonry_kvcache`."""

    parts: ClassVar[dict[str, type]]

    def __init__(self, context):
        with pytest.MonkeyPatch.context() as patch:
            for name, part in self.parts.items():
                patch.setattr(f"tenonry_kvcache.{name}", part)
            super().__init__(context)


# -------------------------------------------------------------------------------------------------------- prefix caches
class ReturnsBlocksLate(WithParts):
    """A block stays with its row for as many tokens as it holds after it has left the window."""

    caught_by = "test_windows_fit_into_the_pool_of_one_sequence"

    class Late(WindowTables):
        def _first_place(self, start, window):
            return super()._first_place(start, window + self._size)

    parts: ClassVar = {"manager.WindowTables": Late}


class CachesOneBlockPerStep(WithParts):
    """Of the blocks that rows fill in the same step, the first one."""

    caught_by = "test_prompts_that_ran_together_are_found"

    class One(BlockTables):
        def cache_each(self, rows, places, digests):
            return super().cache_each(rows[:1], places[:1], digests[:1])

    parts: ClassVar = {"manager.BlockTables": One}


class EvictsTheLatest(WithParts):
    """The block that was released last leaves first."""

    caught_by = "test_the_prefix_cache_keeps_what_was_used_last"

    class Stack(EvictionQueue):
        def pop(self, count):
            blocks = super().pop(len(self))
            num_left = len(blocks) - count
            self.push(blocks[:num_left])
            return blocks[num_left:]

    parts: ClassVar = {"pool.EvictionQueue": Stack}


class EvictsTheOldestState(WithParts):
    """The snapshot that was saved first leaves first, used or not."""

    caught_by = "test_the_prefix_cache_keeps_what_was_used_last"

    class Queue(StateSnapshots):
        def _touch(self, digest):
            return self._slot_of[digest]

    parts: ClassVar = {"manager.StateSnapshots": Queue}


class TrustsWhatAFailedRowFound(KVCacheManager):
    """Only blocks that the failed row has computed leave the cache."""

    caught_by = "test_the_prefix_cache_keeps_what_was_used_last"

    def free(self, request, row, *, num_known, drop=False):
        trusted = self._tables.blocks(row)[: self.prefix.hits[row]].tolist()
        forget = self.pool.forget
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                self.pool,
                "forget",
                lambda blocks: forget(blocks[[block not in trusted for block in blocks.tolist()]]),
            )
            return super().free(request, row, num_known=num_known, drop=drop)


# ------------------------------------------------------------------------------------------------------------ transfers
class NamesOfThisEngine(KVCacheManager):
    """The names of blocks begin with a number that each engine draws."""

    caught_by = "test_a_connector_gets_the_same_names_in_every_engine"

    def __init__(self, context):
        super().__init__(context, secrets.token_hex())


class NamesOfAllTenants(WithParts):
    """The names of blocks do not depend on the salt."""

    caught_by = "test_a_connector_gets_the_same_names_in_every_engine"

    class Hasher(BlockHasher):
        def seed(self, request):
            return self._root

    parts: ClassVar = {"manager.BlockHasher": Hasher}


class DropsLoads(KVCacheManager):
    """A load that succeeds counts as failed."""

    caught_by = "test_loads_are_used_and_failed_ones_cost_little"

    def transfers(self, done, failed):
        return super().transfers([], [*failed, *done])


class RestartsAll(KVCacheManager):
    """A failed load restarts every row."""

    caught_by = "test_loads_are_used_and_failed_ones_cost_little"

    def _disown(self, handle):
        lost = super()._disown(handle)
        return list(self._rows.active) if lost else lost


class BlamesNobody(WithParts):
    """An exception of the connector counts as one of the scheduler."""

    caught_by = "test_a_failing_connector_is_named"

    class Broken(Transfers):
        def _ask(self, call, *args):
            return getattr(self._connector, call)(*args)

    parts: ClassVar = {"manager.Transfers": Broken}


class AllowsKeeping(WithParts):
    """A connector keeps any number of blocks for any time."""

    caught_by = "test_blocks_that_are_kept_for_ever_cost_no_request"

    class Broken(Transfers):
        def check_kept(self, num_blocks, num_needed):
            pass

    parts: ClassVar = {"manager.Transfers": Broken}


class CountsPauses(WithParts):
    """The time in which the engine does nothing counts for the limit."""

    caught_by = "test_blocks_that_are_kept_for_ever_cost_no_request"

    class Broken(Transfers):
        def end_step(self, block_ids):
            self._served_s += max(0.0, self._clock() - self._stepped_at)
            return super().end_step(block_ids)

    parts: ClassVar = {"manager.Transfers": Broken}


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.slow
@pytest.mark.broken("scheduler")
def test_defect_is_found_by_the_test_that_names_it(broken):
    """The failure is a rule that was broken, not an accident."""

    class Scheduler(ReferenceScheduler):
        def __init__(self, context):
            BaseScheduler.__init__(self, context, broken(context))

    class Suite(SchedulerContract):
        scheduler = Scheduler
        caches_prefixes = True
        phases: ClassVar = (Phase.generate,)
        effort = 0.3

    failures = failing_tests(Suite, [broken.caught_by])
    assert broken.caught_by in failures, f"{broken.__name__} passed"
    error = failures[broken.caught_by]
    assert isinstance(error, RuleBroken | ContractViolation | FakeKVError), repr(error)


@pytest.mark.parametrize("name", sorted({broken.caught_by for broken in BROKEN}))
@pytest.mark.slow
def test_a_correct_block_manager_passes(name):
    """The same tests accept the base of the defective ones."""

    class Scheduler(ReferenceScheduler):
        def __init__(self, context):
            BaseScheduler.__init__(self, context, KVCacheManager(context))

    suite = type("Suite", (SchedulerContract,), {"scheduler": Scheduler, "caches_prefixes": True})
    assert not failing_tests(suite, [name])
