"""The rendezvous of the ranks and their collectives: torch.distributed, gloo on the CPU, NCCL on CUDA. Worker process.

Every rank has two groups: the ranks that share its layers (the tensor group, which sums and gathers), and those of the
adjacent pipeline stages (the link, which transfers hidden states).
"""

from __future__ import annotations

import os
import socket
import sys
from collections import deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import psutil
import torch
import torch.distributed as dist

from tenonry.errors import ConfigError
from tenonry_torch_base.parallel.alike import check_alike, served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenonry.config import EngineConfig
    from tenonry.interfaces.worker import WorkerContext

LOOPBACK = "127.0.0.1"
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"


class TensorGroup:
    """The ranks that share one stage's layers. A group of one does nothing, so callers need not distinguish it."""

    def __init__(
        self, rank: int = 0, size: int = 1, group: Any = None, host_group: Any = None
    ) -> None:
        """`host_group`: the same ranks for numbers in main memory, where `group` is of devices."""
        self.rank = rank
        self.size = size
        self.is_muted = False
        self._group = group
        self._on_host = None if host_group is None else TensorGroup(rank, size, host_group)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Replace collectives by local values inside, without waiting for other ranks. Only errors count there."""
        self.is_muted = True
        try:
            yield
        finally:
            self.is_muted = False

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks, in place if `x` is contiguous; every rank receives the same bits."""
        if self.size > 1 and x.numel() and not self.is_muted:
            x = x.contiguous()
            dist.all_reduce(x, group=self._group)
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Concatenates `x` [..., n] of every rank: [..., n × size], equal on all ranks."""
        if self.size == 1:
            return x
        *before, width = x.shape
        if not x.numel():  # a step without sampling rows
            return x.new_empty(*before, self.size * width)
        side_by_side = self.stack(x).movedim(0, -2)  # [..., size, n]
        return side_by_side.reshape(*before, -1)

    def stack(self, x: torch.Tensor) -> torch.Tensor:
        """`x` of every rank, of one shape everywhere: [size, *shape], equal on all ranks."""
        every = x.new_empty(self.size, *x.shape)
        if self.size == 1 or not x.numel() or self.is_muted:
            return every.copy_(x)
        # The second is its name before torch 2.13.
        all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        width = x.shape[-1]
        all_gather(every.view(-1, width), x.contiguous().view(-1, width), group=self._group)
        return every

    def counts(self, count: int) -> list[int]:
        """`count` of every rank. Waits for their hosts, and for no device."""
        if self.size == 1 or self.is_muted:
            return [count] * self.size
        found: list[int] = (self._on_host or self).stack(torch.tensor([count])).flatten().tolist()
        return found

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        """The first rank's `x`, in place; `x` is contiguous."""
        if self.size > 1 and not self.is_muted:
            dist.broadcast(x, group=self._group, group_src=0)
        return x

    def all_agree(self, is_true: bool) -> bool:
        """Return True if it is true on every rank."""
        return self.first_false(is_true) is None

    def first_false(self, is_true: bool) -> int | None:
        """Lowest rank on which it is false; None if there is none."""
        lowest = self.size if is_true else self.rank
        if self.size > 1 and not self.is_muted:
            is_cuda = dist.get_backend(self._group) == "nccl"
            votes = torch.tensor([lowest], device="cuda" if is_cuda else "cpu")
            dist.all_reduce(votes, dist.ReduceOp.MIN, group=self._group)
            lowest = int(votes.item())
        return None if lowest == self.size else lowest

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorGroup:
        """A copied module keeps the same group."""
        return self


class Link:
    """The pipeline stages before and after this one. Sending does not block, so that a stage can continue with the next
    step; tensors in flight are kept until they have arrived.
    """

    def __init__(self, stage: int = 0, num_stages: int = 1, group: Any = None) -> None:
        self.stage = stage
        self.num_stages = num_stages
        self._group = group
        self._like = torch.empty(0)
        self._under_way: deque[tuple[Any, torch.Tensor]] = deque()

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.num_stages - 1

    def carries(self, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        """Set the form of one token between stages."""
        self._like = torch.empty(hidden_size, dtype=dtype, device=device)

    def blank(self, count: int) -> torch.Tensor:
        """Inputs of this stage for `count` placeholder tokens."""
        if self.is_first:
            return torch.zeros(count, dtype=torch.long, device=self._like.device)
        return self._like.new_zeros(count, len(self._like))

    def inputs(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Input of this stage for the tokens i64[T]: their ids, or the previous stage's output for them."""
        return (
            token_ids
            if self.is_first
            else self.receive(self._like.new_empty(len(token_ids), len(self._like)))
        )

    def send(self, hidden: torch.Tensor) -> None:
        """Send to the next stage."""
        while self._under_way and (
            len(self._under_way) > self.num_stages or self._under_way[0][0].is_completed()
        ):
            self._under_way.popleft()[0].wait()
        hidden = hidden.contiguous()
        work = dist.isend(hidden, group=self._group, group_dst=self.stage + 1)
        self._under_way.append((work, hidden))

    def receive(self, into: torch.Tensor) -> torch.Tensor:
        """Receive from the previous stage, into a tensor of the right shape."""
        work = dist.irecv(into, group=self._group, group_src=self.stage - 1)
        if work is not None:
            work.wait()
        return into


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """`everyone`: all ranks of all engines, each with separate experts. `peers`: of every engine the rank with the same
    place in its tensor group; together they have the tokens of all engines once.
    """

    everyone: TensorGroup
    peers: TensorGroup


@dataclass(slots=True)
class Parallel:
    """A rank's place: its tensor group and its link. `experts`: where experts are shared out."""

    tensor: TensorGroup
    link: Link
    experts: ExpertGroups | None = None

    @property
    def is_alone(self) -> bool:
        return self.tensor.size == 1 and self.link.num_stages == 1 and self.experts is None

    @contextmanager
    def muted(self) -> Iterator[None]:
        """`TensorGroup.muted` for all groups."""
        groups = [self.tensor]
        if self.experts is not None:
            groups += [self.experts.everyone, self.experts.peers]
        with ExitStack() as muted:
            for group in groups:
                muted.enter_context(group.muted())
            yield

    @property
    def layer_mates(self) -> TensorGroup:
        """Ranks that compute layers together with this one, and therefore decide alike."""
        return self.tensor if self.experts is None else self.experts.everyone


def alone() -> Parallel:
    """The only rank."""
    return Parallel(TensorGroup(), Link())


def open_store(host: str, world_size: int, timeout_s: float, port: int = 0) -> tuple[Any, str]:
    """Listen on `port` of `host`, 0 for a free one; returns the store, which must be kept, and its URL. Raises
    ConfigError.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        of_port = f" port {port}" if port else ""
        raise ConfigError(
            f"the ranks' rendezvous cannot listen on {host}{of_port}: {error}; give an address of this node"
            + (" and a free port" if port else "")
        ) from None
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        host,
        port,
        world_size,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def find_store(rendezvous: str, world_size: int, timeout_s: float) -> Any:
    """Connect to the store of a rendezvous URL. Raises ConfigError naming it."""
    url = urlsplit(rendezvous)
    timeout = timedelta(seconds=timeout_s)
    if url.scheme == "file" and url.path:
        return dist.FileStore(unquote(url.path), world_size)
    if url.scheme == "tcp" and url.hostname and url.port:
        return dist.TCPStore(url.hostname, url.port, world_size, is_master=False, timeout=timeout)
    raise ConfigError(
        f"rendezvous '{rendezvous}' of several ranks must be file:///PATH or tcp://HOST:PORT"
    )


def interface_towards(host: str) -> str | None:
    """Network interface by which this node reaches `host`, possibly its own address; None if none is found."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # only a route lookup
            own = probe.getsockname()[0]
    except OSError:
        return None
    found = psutil.net_if_addrs().items()
    return next(
        (
            name
            for name, entries in found
            if any(entry.address.split("%")[0] == own for entry in entries)
        ),
        None,
    )


class Rendezvous:
    """The process groups of one rank, from `join` to `leave`."""

    def __init__(self, context: WorkerContext, opened: tuple[Any, str] | None = None) -> None:
        config = context.config
        self.num_engines = engines_together(config)
        self.rank = context.rank
        self.world_size = config.world_size * self.num_engines
        self._timeout_s = config.start_timeout
        self._url = context.rendezvous
        if self.num_engines > 1:
            self.rank += context.engine_index * config.world_size
            self._url = config.expert_rendezvous
            opened = self._open() if self.rank == 0 else None
        if opened is None:
            opened = (find_store(self._url, self.world_size, config.start_timeout), self._url)
        self.store, self._url = opened

    def _open(self) -> tuple[Any, str] | None:
        """The store of a `tcp` address that the user chose, by the first of all ranks."""
        url = urlsplit(self._url)
        if url.scheme != "tcp" or not url.hostname or not url.port:
            return None
        return open_store(url.hostname, self.world_size, self._timeout_s, url.port)

    def all_agree(self, where: str, is_true: bool) -> bool:
        """Return True if it is true on every rank; waits for all of them. `where` is used once."""
        self.store.set(f"{where}/says/{self.rank}", b"1" if is_true else b"0")
        self.wait_for_all(where)
        said = [self.store.get(f"{where}/says/{rank}") for rank in range(self.world_size)]
        return all(word == b"1" for word in said)

    def wait_for_all(self, where: str) -> None:
        """Wait for every rank. Loading may take a rank longer than the time limit of a step."""
        self.store.set(f"{where}/{self.rank}", b"1")
        keys = [f"{where}/{rank}" for rank in range(self.world_size)]
        self.store.wait(keys, timedelta(seconds=self._timeout_s))

    def join(self, context: WorkerContext, device: torch.device) -> Parallel:
        """Make the groups of all ranks, in one order everywhere; this rank's place among them."""
        config = context.config
        timeout = timedelta(seconds=config.step_timeout)
        # Without a name, gloo resolves the host's, which may belong to another interface.
        interface = interface_towards(urlsplit(self._url).hostname or LOOPBACK)
        if interface is not None:
            os.environ.setdefault(INTERFACE_VARIABLE, interface)
        if self.num_engines > 1 and context.rank == 0:
            check_alike(
                self.store, context.engine_index, self.num_engines, served(context), self._timeout_s
            )
        self.wait_for_all("here")
        is_cuda = device.type == "cuda"
        hook = sys.excepthook
        dist.init_process_group(
            "nccl" if is_cuda else "gloo",
            store=self.store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=timeout,
            device_id=device if is_cuda else None,
        )
        sys.excepthook = hook  # torch's own adds the rank, as the executor does already
        tp_size = config.tensor_parallel_size
        pp_size = config.pipeline_parallel_size
        starts = range(0, self.world_size, tp_size)
        stages = [list(range(start, start + tp_size)) for start in starts]
        pipelines = [list(range(place, self.world_size, tp_size)) for place in range(tp_size)]
        # Every rank makes all groups, in this order.
        of_stage = _new_groups(stages, timeout) if tp_size > 1 else {}
        of_pipeline = _new_groups(pipelines, timeout) if pp_size > 1 else {}
        stage, place = divmod(context.rank, tp_size)  # of this engine
        tensor = TensorGroup(place, tp_size, of_stage.get(self.rank // tp_size))
        link = Link(stage, pp_size, of_pipeline.get(place))
        if not config.enable_expert_parallel:
            return Parallel(tensor, link)
        shares = self.num_engines > 1
        of_peers = _new_groups(pipelines, timeout) if shares else {}
        on_host = _new_groups(pipelines, timeout, "gloo") if shares and is_cuda else {}
        peers = TensorGroup(
            context.engine_index, self.num_engines, of_peers.get(place), on_host.get(place)
        )
        everyone = TensorGroup(self.rank, self.world_size)
        return Parallel(tensor, link, ExpertGroups(everyone, peers))

    def leave(self) -> None:
        """Close the process group and the store."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self.store = None


def engines_together(config: EngineConfig) -> int:
    """Number of engines whose ranks compute layers together."""
    return config.data_parallel_size if config.enable_expert_parallel else 1


def _new_groups(
    members: list[list[int]], timeout: timedelta, backend: str | None = None
) -> dict[int, Any]:
    """A process group for each list of ranks, by its place among them."""
    return {
        number: dist.new_group(ranks, timeout=timeout, backend=backend)
        for number, ranks in enumerate(members)
    }
