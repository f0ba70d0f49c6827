"""Several processes that train one model together, started by torchrun. With one process, nothing is communicated.

All processes read the same data and draw the same batches. Row i of a batch is computed by process i modulo `world()`.
The loss of a stage that compares rows with each other is computed by all processes from the gathered rows; each
derives it by its own rows, which is the whole gradient of these. torch's DistributedDataParallel then averages the
gradients over the processes, so that weights stay equal everywhere. Process 0 writes all files and prints.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from genius.errors import BadData
from genius.train.compute import choose_device

PATIENCE = timedelta(hours=24)  # others may wait for process 0 this long; torchrun ends them if it fails
T = TypeVar("T")


@contextmanager
def processes(device: str) -> Iterator[torch.device]:
    """Join the processes of torchrun, if it started this one. Yields the device of this process.

    Raises:
        BadData: There is no such device for this process.
    """
    chosen = choose_device(device)
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        yield chosen
        return
    if chosen.type == "cuda":
        number = int(os.environ.get("LOCAL_RANK", "0"))
        if number >= torch.cuda.device_count():
            raise BadData(
                f"Process {number} of this machine has no GPU of its own: there are {torch.cuda.device_count()}. "
                "Start as many processes with --nproc-per-node."
            )
        chosen = torch.device("cuda", number)
        torch.cuda.set_device(chosen)
    elif chosen.type != "cpu":
        raise BadData(f"Several processes cannot share the device {device!r}. Start one without torchrun.")
    # Tensors on the CPU, such as flags and codes, go by gloo everywhere.
    dist.init_process_group("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo", timeout=PATIENCE)
    yield chosen
    dist.destroy_process_group()  # not after an error: the others may be waiting for this one until torchrun ends them


def world() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Whether this process writes files and prints."""
    return rank() == 0


def barrier() -> None:
    """Wait until all processes are here."""
    if world() > 1:
        dist.all_reduce(torch.zeros(1))  # by gloo, which waits without using a GPU


def own(rows: T) -> T:
    """The rows of this process: of a tensor, an array, a list or a range."""
    mine: T = rows if world() == 1 else cast(Any, rows)[rank() :: world()]
    return mine


def gathered(rows: Tensor, count: int) -> Tensor:
    """The inverse of `own`: collect the rows of all processes into one tensor of `count` rows, in their order.

    This process can derive a loss by its own rows. If every process computes the same loss from all rows, the mean of
    their gradients is the gradient of that loss.
    """
    every: Tensor = rows if world() == 1 else _Gather.apply(rows, count)  # type: ignore[no-untyped-call]
    return every


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int) -> Tensor:
        most = -(-count // world())
        padded = torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
        parts = [torch.empty_like(padded) for _ in range(world())]
        dist.all_gather(parts, padded)
        return torch.stack(parts, dim=1).flatten(0, 1)[:count]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return world() * gradients[0][rank() :: world()], None  # as many times, since the gradients are averaged


def summed(values: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    if world() > 1:
        dist.all_reduce(values)
    return values


def averaged(values: Mapping[str, Tensor | float]) -> dict[str, float]:
    """The mean over all processes of numbers that all of them have."""
    if world() == 1:
        return {name: float(value) for name, value in values.items()}
    mean = summed(torch.tensor([float(value) for value in values.values()], dtype=torch.float64)) / world()
    return dict(zip(values, mean.tolist(), strict=True))


def from_main(make: Callable[[], T]) -> T:
    """Call `make` in process 0 and send the result to all processes, which wait for it."""
    if world() == 1:
        return make()
    box: list[Any] = [make() if is_main() else None]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    made: T = box[0]
    return made


def by_name(names: Sequence[str], make: Callable[[int], T]) -> dict[str, T]:
    """Call make(i) for name i. The processes share the work, and all get all results, in the order of the names."""
    found = {i: make(i) for i in own(range(len(names)))}
    if world() > 1:
        every: list[dict[int, T]] = [{}] * world()
        dist.all_gather_object(every, found)
        found = {i: value for part in every for i, value in part.items()}
    return {name: found[i] for i, name in enumerate(names)}


@torch.no_grad()
def send_weights(module: nn.Module) -> None:
    """Give all processes the weights and buffers of process 0."""
    if world() > 1:
        for value in (*module.parameters(), *module.buffers()):
            dist.broadcast(value, 0)


class Averaging:
    """Averages gradients over the processes while they are computed (DistributedDataParallel)."""

    def __init__(self, module: nn.Module) -> None:
        self.wrapped: DistributedDataParallel | None = None
        if world() > 1:
            # A batch without images leaves weights without gradients. Where all have one, torch warns of the search.
            warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
            self.wrapped = DistributedDataParallel(_Call(module), broadcast_buffers=False, find_unused_parameters=True)

    def __call__(self, work: Callable[[], T]) -> T:
        """Call `work`, a forward pass, so that the backward pass of its result averages the gradients."""
        if self.wrapped is None:
            return work()
        result: T = self.wrapped(work)
        return result

    def until_last(self, last: bool) -> AbstractContextManager[object]:
        """A context in which gradients are only added up, unless this is the last part of a batch."""
        return nullcontext() if last or self.wrapped is None else self.wrapped.no_sync()


class _Call(nn.Module):
    """Makes any forward pass that uses `module` the forward pass of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, work: Callable[[], T]) -> T:
        return work()
