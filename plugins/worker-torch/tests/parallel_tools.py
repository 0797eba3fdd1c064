"""Several ranks as threads of the test's process: they meet at a barrier, and stages hand tensors on in queues."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import worker_tools

from tenonry.step import DoneFuture
from tenonry_torch_base.buffers import HostBuffers
from tenonry_torch_base.parallel.groups import Link, Parallel, TensorGroup
from tenonry_worker_torch.adapters.registry import Adapters
from tenonry_worker_torch.adapters.targets import LoraTargets
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.images.check import ImageCheck
from tenonry_worker_torch.loading.load import load_model, look
from tenonry_worker_torch.runner.assemble import assemble_runner

TIMEOUT_S = 20


class ThreadGroup(TensorGroup):
    """As a TensorGroup, over threads."""

    def __init__(self, rank, size, shared):
        super().__init__(rank, size)
        self._shared = shared

    def _exchange(self, value):
        if self.is_muted:
            return [value] * self.size
        barrier, values = self._shared
        values[self.rank] = value
        barrier.wait(TIMEOUT_S)
        every = list(values)
        barrier.wait(TIMEOUT_S)
        return every

    def sum(self, x):
        return torch.stack(self._exchange(x.clone())).sum(0)

    def gather(self, x):
        return torch.cat(self._exchange(x.clone()), -1)

    def stack(self, x):
        return torch.stack(self._exchange(x.clone()))

    def broadcast(self, x):
        return x.copy_(self._exchange(x.clone())[0])

    def first_false(self, is_true):
        every = self._exchange(is_true)
        return every.index(False) if False in every else None


class ThreadLink(Link):
    """As a Link, over queues."""

    def __init__(self, stage, num_stages, queues):
        super().__init__(stage, num_stages)
        self._queues = queues

    def send(self, hidden):
        self._queues[self.stage].put(hidden.clone())

    def receive(self, into):
        return into.copy_(self._queues[self.stage - 1].get(timeout=TIMEOUT_S))


def places(tp, pp):
    """One Parallel per rank, in order of rank."""
    groups = [(threading.Barrier(tp), [None] * tp) for _ in range(pp)]
    queues = [[queue.SimpleQueue() for _ in range(pp)] for _ in range(tp)]
    return [
        Parallel(ThreadGroup(place, tp, groups[stage]), ThreadLink(stage, pp, queues[place]))
        for stage in range(pp)
        for place in range(tp)
    ]


class Ranks:
    """All ranks of a model, loaded from a folder; `answer` is called by a Driver."""

    def __init__(
        self,
        folder,
        tp=1,
        pp=1,
        *,
        backend="cpu",
        fuse=True,
        load_format="auto",
        dtype="float32",
        max_loras=0,
        sees=False,
        kv_cache_dtype="auto",
        **runner,
    ):
        self.tp, self.pp = tp, pp
        self._threads = ThreadPoolExecutor(tp * pp)
        self._last = {}
        everyone = places(tp, pp)
        cpu = torch.device("cpu")
        found = look(str(folder), load_format=load_format, towers=sees)
        modules = [  # one after another: transformers swaps functions of modules while it loads
            load_model(
                str(folder),
                load_format=load_format,
                dtype=dtype,
                device=cpu,
                seed=0,
                parallel=parallel,
                found=found,
            )
            for parallel in everyone
        ]
        adapters = [
            Adapters(LoraTargets(found.whole, module), max_loras, 16) if max_loras else None
            for module in modules
        ]
        plans = [
            BuildPlan(
                worker_tools.BACKENDS[backend],
                HostBuffers(cpu, 1),
                max_model_len=64,
                fuse=fuse,
                skip_check=False,
                parallel=parallel,
                adapters=held,
                image_check=ImageCheck(str(folder)) if sees else None,
                kv_cache_dtype=kv_cache_dtype,
            )
            for parallel, held in zip(everyone, adapters, strict=True)
        ]
        self.models = self.all(lambda rank: build(modules[rank], plans[rank]))
        sizes = {"max_num_seqs": 6, "max_model_len": 64, "num_blocks": 96, "block_size": 4} | runner
        self.runners = [assemble_runner(model, **sizes) for model in self.models]

    def all(self, work):
        """`work(rank)` on every rank concurrently; the results in order of rank."""
        futures = [self._threads.submit(work, rank) for rank in range(self.tp * self.pp)]
        return [future.result(TIMEOUT_S) for future in futures]

    def answer(self, output):
        """One step on all ranks. In a pipeline, stages receive the tokens of decoding rows, as from a scheduler."""
        if self.pp > 1:
            for new in output.new:
                self._last.pop(new.row, None)
            output.next_token = output.next_token.copy()
            for i, row in enumerate(output.row.tolist()):
                if row in self._last and output.num_tokens[i] == 1:
                    output.next_token[i] = self._last[row]
        self.results = self.all(lambda rank: self.runners[rank].execute(output))
        result = self.results[(self.pp - 1) * self.tp]
        self._last.update(zip(result.row.tolist(), result.token_ids.tolist(), strict=True))
        return DoneFuture(result)

    def close(self):
        self._threads.shutdown()
