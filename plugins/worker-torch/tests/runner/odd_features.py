"""Runner features of another package: one that observes, one that changes answers, and some with one defect each."""

from __future__ import annotations

from tenonry_worker_torch.runner.feature import RunnerFeature

REPEATED = "test_passes_are_repeated_in_parts"


class Hidden(RunnerFeature):
    """Keeps the last hidden states of each row."""

    name = "hidden"
    needs_hidden = True

    def __init__(self, context):
        super().__init__(context)
        self.of_row = {}

    def enter(self, new):
        if new.row in self.of_row:
            raise RuntimeError(f"row {new.row} did not leave")

    def leave(self, rows):
        for row in rows.tolist():
            self.of_row.pop(row, None)

    def after(self, step):
        for row, hidden in zip(step.sampling.row.tolist(), step.hidden, strict=True):
            self.of_row[row] = hidden


class Forbids(RunnerFeature):
    """No request gets token 7."""

    name = "forbids"

    def before_sampling(self, step):
        step.logits[:, 7] = -1e9


class ChangesTokens(RunnerFeature):
    name = "changes tokens"
    caught_by = "test_the_same_request_gets_the_same_tokens"

    def before_sampling(self, step):
        step.logits.neg_()


class CountsPreparedTokens(RunnerFeature):
    name = "counts prepared tokens"
    caught_by = REPEATED

    def __init__(self, context):
        super().__init__(context)
        self.count = 0

    def prepare(self, step):
        self.count += len(step.token_ids)

    def after(self, step):
        if self.count != len(step.token_ids):
            raise RuntimeError(f"{self.count} tokens were prepared, and {len(step.token_ids)} ran")
        self.count = 0


class KeepsRows(Hidden):
    name = "keeps rows"
    caught_by = "test_a_row_keeps_nothing_of_the_request_before_it"

    def leave(self, rows):
        pass


class KeepsTheRelease(RunnerFeature):
    name = "keeps the release"
    caught_by = "test_sleeps_and_wakes_up"

    def __init__(self, context):
        super().__init__(context)
        self.memory = bytearray(8)

    def release(self):
        self.memory = None

    def after(self, step):
        self.memory[0] = 1


class RefusesDummies(RunnerFeature):
    name = "refuses dummies"
    caught_by = "test_joins_steps_without_requests"

    def dummy(self):
        raise NotImplementedError


class KeepsRowsOfTheStep(RunnerFeature):
    name = "keeps rows of the step"
    caught_by = REPEATED

    def prepare(self, step):
        if getattr(self, "rows", None) is not None:
            raise RuntimeError("the step before has not ended")
        self.rows = step.sampling.row

    def after(self, step):
        self.rows = None


class NoName(RunnerFeature):
    name = ""
    caught_by = "test_is_described"


class OfTheFuture(RunnerFeature):
    name = "of the future"
    interface_version = 99
    caught_by = "test_is_described"
