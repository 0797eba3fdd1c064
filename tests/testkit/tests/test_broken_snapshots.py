"""The suite finds wrong snapshots of states: schedulers over block managers with one defect each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase

from tenonry.errors import ContractViolation
from tenonry.step import NO_ROWS
from tenonry_kvcache import KVCacheManager
from tenonry_scheduling import BaseScheduler
from tenonry_scheduling.blocks import NewBlocks
from tenonry_testkit.fakes import FakeKVError, ReferenceScheduler
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.rules import RuleBroken
from tenonry_testkit.scheduler import SchedulerContract

TEST = "test_a_snapshot_of_states_changes_no_token"


class StartsWithoutAState(KVCacheManager):
    """The prefix is cached, but the row is sent without the slot."""

    def table(self, row):
        return (*super().table(row)[:-1], NO_ROWS)


class StartsFromAnotherSlot(KVCacheManager):
    """The state of another prefix, or of none."""

    def table(self, row):
        *tables, slots = super().table(row)
        return (*tables, (slots + 1) % 2)


class SavesWhereAnotherIs(KVCacheManager):
    """Every copy goes to the first slot, whatever its contents."""

    def save_states(self, rows, num_tokens):
        saved = super().save_states(rows, num_tokens)
        return saved._replace(block_id=np.zeros_like(saved.block_id))


class SavesLate(KVCacheManager):
    """The copy is made one step after the one that ends on the boundary."""

    late = NewBlocks(NO_ROWS, NO_ROWS, NO_ROWS)

    def save_states(self, rows, num_tokens):
        late = self.late
        self.late = super().save_states(rows, num_tokens)
        return late


class FindsWhatTheStepSaves(KVCacheManager):
    """A row starts from a slot that the same step fills."""

    def register(self, rows, num_known):
        super().register(rows, num_known)
        self.connector_metadata()

    def save_states(self, rows, num_tokens):
        saved = super().save_states(rows, num_tokens)
        self.connector_metadata()
        return saved


class TrustsFailedStates(KVCacheManager):
    """Snapshots saved by a failed row can be found, with the blocks that it filled."""

    def free(self, request, row, *, num_known, drop=False):
        return super().free(request, row, num_known=num_known)


class RemembersStates(KVCacheManager):
    """A reset forgets nothing."""

    def reset(self):
        return True


@pytest.mark.parametrize(
    "broken",
    [
        StartsWithoutAState,
        StartsFromAnotherSlot,
        SavesWhereAnotherIs,
        SavesLate,
        FindsWhatTheStepSaves,
        TrustsFailedStates,
        RemembersStates,
    ],
)
@pytest.mark.slow
@pytest.mark.broken("scheduler")
def test_defect_is_found(broken):
    """The failure is a rule that was broken, not an accident."""

    class Scheduler(ReferenceScheduler):
        def __init__(self, context):
            BaseScheduler.__init__(self, context, broken(context))

    suite = type(
        "Suite",
        (SchedulerContract,),
        {"scheduler": Scheduler, "phases": (Phase.generate,), "effort": 2},
    )
    failures = failing_tests(suite, [TEST])
    assert TEST in failures, f"{broken.__name__} passed"
    assert isinstance(failures[TEST], RuleBroken | ContractViolation | FakeKVError), failures
