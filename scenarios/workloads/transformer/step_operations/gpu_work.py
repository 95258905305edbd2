"""Computing and exchanges on the way of it: those of tensor, context and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scenarios.workloads.transformer.step_operations.compute_stream import ComputeStream
from scenarios.workloads.transformer.step_operations.group_stream import (
    GroupStream,
    PendingExchange,
    message_count,
)
from scenarios.workloads.transformer.step_operations.layer_work import Computing, Exchanging, Work
from scenarios.workloads.transformer.step_operations.synthetic_tensors import (
    CheckedTensor,
    FilledTensor,
)
from scenarios.workloads.transformer.step_scale import StepScale


@dataclass
class _Waiting:
    """The work of a GPU before the next tensor leaves it; ``read`` are exchanges whose results are.

    Those results are among ``checks``.
    """

    duration_ns: int = 0
    checks: list[CheckedTensor] = field(default_factory=list)
    read: list[PendingExchange] = field(default_factory=list)


class GpuWork:
    """The work of all GPUs, in their order; ``streams`` has by kind and GPU that of its group."""

    def __init__(
        self,
        computing: ComputeStream,
        scale: StepScale,
        streams: Mapping[str, Mapping[int, GroupStream]],
        numbers: Iterator[int],
    ) -> None:
        self._computing, self._scale = computing, scale
        self._streams, self._numbers = streams, numbers
        self._waiting: dict[int, _Waiting] = {}

    def expect(self, gpu: int, check: CheckedTensor, read: PendingExchange | None = None) -> None:
        """Let the next computation of ``gpu`` wait for ``check``, a result of ``read``."""
        waiting = self._waiting.setdefault(gpu, _Waiting())
        waiting.checks.append(check)
        if read is not None:
            waiting.read.append(read)

    def flush(self, gpu: int, fills: Sequence[FilledTensor] = ()) -> int:
        """Let ``gpu`` compute what waits, and fill what leaves it; return the operation's index."""
        waiting = self._waiting.pop(gpu, _Waiting())
        index = self._computing.compute(gpu, waiting.duration_ns, waiting.checks, fills)
        for read in waiting.read:
            read.consumed[gpu] = index
        return index

    def do(self, gpus: Sequence[int], work: Iterable[Work]) -> None:
        """Let all of ``gpus`` do ``work``."""
        for one in work:
            if isinstance(one, Computing):
                duration = self._scale.duration_ns(one.flops)
                for gpu in gpus:
                    self._waiting.setdefault(gpu, _Waiting()).duration_ns += duration
            else:
                self._exchange(gpus, one)

    def _exchange(self, gpus: Sequence[int], one: Exchanging) -> None:
        groups = {
            stream.communicator.ranks: stream
            for stream in map(self._streams[one.kind].__getitem__, gpus)
        }
        for stream in groups.values():
            if len(stream.communicator) == 1:
                continue
            parts = message_count(one.collective, stream.communicator)
            octets = self._scale.octets(one.octets, parts)
            exchange = stream.open(one.collective, octets, next(self._numbers), one.kind)
            entry = {gpu: self.flush(gpu, [fill]) for gpu, fill in exchange.fills().items()}
            for gpu, check in exchange.begin(entry).items():
                self.expect(gpu, check, exchange)
