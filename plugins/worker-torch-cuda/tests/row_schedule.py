"""Steps written down by hand: rows enter, decode in any company, leave and come back, and take blocks as they grow."""

from __future__ import annotations

import numpy as np

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput

GREEDY = SamplingParams(temperature=0.0)


class Schedule:
    """Runs steps of `runner`; `depth` of them before the first answer is read. `tokens`: row's name → its tokens."""

    def __init__(self, runner, block_size, num_blocks, depth=1):
        self.runner, self.block_size, self.depth = runner, block_size, depth
        self.free = list(range(num_blocks - 1, -1, -1))
        self.rows, self.blocks, self.length = {}, {}, {}  # by name
        self.prompts, self.sampling, self.tokens = {}, {}, {}
        self.flying, self.gone, self.number = [], [], 0

    def enter(self, name, row, prompt, sampling=GREEDY):
        """A row with its prompt, or with all of its tokens if it was here before."""
        self.prompts.setdefault(name, list(prompt))
        self.sampling[name] = sampling
        self.rows[name] = row
        self.tokens.setdefault(name, [])
        return name

    def leave(self, name):
        self.answers()
        self.gone.append(self.rows.pop(name))
        self.free.extend(self.blocks.pop(name))

    def step(self, *names, new=()):
        """One token for each of `names`, and the prompts of the `new` ones."""
        grown = [(self.rows[name], block) for name in names for block in self._grow(name, 1)]
        if new:
            self.answers()
        entering = [self._entering(name) for name in new]
        every = [*names, *new]
        counts = [1] * len(names) + [len(each.token_ids) for each in entering]
        output = SchedulerOutput(
            step_id=self.number, gone=np.array(self.gone, np.int32), new=entering,
            row=np.array([self.rows[name] for name in every], np.int32), num_tokens=np.array(counts, np.int32),
            next_token=np.full(len(every), -1, np.int32), samples=np.ones(len(every), np.bool_),
            new_block_row=np.array([row for row, _ in grown], np.int32),
            new_block_group=np.zeros(len(grown), np.int32),
            new_block_id=np.array([block for _, block in grown], np.int32),
        )  # fmt: skip
        self.gone = []
        self.number += 1
        self.flying.append((self.runner.answer(output), every))
        if len(self.flying) >= self.depth:
            self._read()

    def answers(self):
        while self.flying:
            self._read()

    def _read(self):
        future, names = self.flying.pop(0)
        found = dict(zip(future.result().row.tolist(), future.result().token_ids, strict=True))
        for name in names:
            self.tokens[name].append(int(found[self.rows[name]]))

    def _entering(self, name):
        tokens = self.prompts[name] + self.tokens[name]
        self.blocks[name], self.length[name] = [], 0
        ids = np.array(self._grow(name, len(tokens)), np.int32)
        return NewRow(
            row=self.rows[name], handle=self.number + self.rows[name] + 1, token_ids=np.array(tokens, np.int32),
            num_computed=0, num_output=len(self.tokens[name]), block_ids=(ids,), sampling=self.sampling[name],
        )  # fmt: skip

    def _grow(self, name, count):
        self.length[name] += count
        taken = []
        while len(self.blocks[name]) * self.block_size < self.length[name]:
            taken.append(self.free.pop())
            self.blocks[name].append(taken[-1])
        return taken
