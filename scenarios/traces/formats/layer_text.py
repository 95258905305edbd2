"""Layers of a training step as text: workloads of ASTRA-sim 1.0, and of SimAI and AICB.

::

    HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 1 pp: 1 ga: 1 all_gpus: 8
    1
    mlp  -1  923000 ALLGATHER 20971520  923000 REDUCESCATTER 20971520  923000 ALLREDUCE 4096  100

The first line is the policy, the second the number of layers.  A layer has its name, a number that
nobody uses, and thrice a time (ns), a collective and a size (octets): of the forward pass, of the
input gradient and of the weight gradient; then the time (ns) that follows each of its collectives.

One step runs as ASTRA-sim runs it: forward through all layers, then backward.  Collectives of the
forward pass and of input gradients hold the next computation up, those of weight gradients do not.
Plain names are collectives of the tensor-parallel group, and of the data-parallel one for weight
gradients.  Where a header names checkpoints, an initiating layer computes forward again from the
checkpoint before it.  In a recommendation model (``HYBRID_DLRM``) the first layer exchanges
embeddings with all ranks while the layers up to the last bottom one compute.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from scenarios.traces.format_registry import FORMATS, ReadOptions, TraceFormat
from scenarios.traces.trace_file import TraceFile
from scenarios.traces.trace_model import (
    MOST_OPERATIONS,
    MOST_RANKS,
    Collective,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceOperation,
)

_COLLECTIVES = {
    "ALLREDUCE": Collective.ALL_REDUCE,
    "ALLGATHER": Collective.ALL_GATHER,
    "REDUCESCATTER": Collective.REDUCE_SCATTER,
    "ALLTOALL": Collective.ALL_TO_ALL,
}
#: What the simulators ignore.
_IGNORED = ("NONE", "BROADCAST")
MICRO, DATA, MODEL = "MICRO", "DATA", "MODEL"
TRANSFORMER = ("HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD")
DLRM = ("HYBRID_DLRM", "HYBRID_DLRM_ENHANCED")
_POLICIES = (MICRO, DATA, MODEL, *TRANSFORMER, *DLRM)
_COLUMNS = 12
_SETTING = re.compile(r"([A-Za-z_]+):?\s+([0-9]{1,9})\b")
#: A count of layers, and so many numbers of layers.
_LAYER_LIST = r"\b{name}:?\s+([0-9]{{1,9}})((?:\s+[0-9]{{1,9}}\b)*)"
WHOLE, PART = "whole", "part"


@dataclass(frozen=True)
class _Phase:
    """A computation, and the collective behind it with its group."""

    time_ns: int
    kind: Collective | None
    octets: int
    suffix: str


@dataclass(frozen=True)
class _Layer:
    line: int
    name: str
    forward: _Phase
    input_gradient: _Phase
    weight_gradient: _Phase
    update_ns: int


@dataclass(frozen=True)
class _Grid:
    """Groups of ranks: tensor parallelism varies fastest, then expert, then data parallelism."""

    ranks: int
    tensor: int
    expert: int

    def members(self, suffix: str, weights: bool) -> int:
        """Return how many ranks a group has."""
        return len(self.group(0, suffix, weights)[1])

    def group(self, rank: int, suffix: str, weights: bool) -> tuple[str, tuple[int, ...]]:
        tensor, data = rank % self.tensor, rank // self.tensor
        replicas = range(self.ranks // self.tensor)
        if suffix == "EP":
            block = data // self.expert
            chosen = [one for one in replicas if one // self.expert == block]
            name = f"ep{tensor}.{block}"
        elif suffix == "DP_EP":
            chosen = [one for one in replicas if one % self.expert == data % self.expert]
            name = f"dpep{tensor}.{data % self.expert}"
        elif weights:
            chosen, name = list(replicas), f"dp{tensor}"
        else:
            first = data * self.tensor
            return f"tp{data}", tuple(range(first, first + self.tensor))
        return name, tuple(one * self.tensor + tensor for one in chosen)


@dataclass
class _RankList:
    """The operations of a rank, while they are written."""

    rank: int
    grid: _Grid
    groups: dict[str, tuple[int, ...]]
    operations: list[TraceOperation] = field(default_factory=list)
    after: tuple[int, ...] = ()

    def compute(self, layer: _Layer, phase: _Phase, what: str) -> None:
        self.after = (
            self._append(
                TraceCompute(
                    where=f"line {layer.line}",
                    name=f"{layer.name} {what}",
                    after=self.after,
                    duration_ns=phase.time_ns,
                )
            ),
        )

    def collective(
        self, layer: _Layer, phase: _Phase, *, weights: bool, blocks: bool
    ) -> tuple[int, ...]:
        """Append a collective, if the phase has one, and return what ends it."""
        if phase.kind is None:
            return ()
        group, ranks = self.grid.group(self.rank, phase.suffix, weights)
        self.groups.setdefault(group, ranks)
        one = self._append(
            TraceCollective(
                where=f"line {layer.line}",
                name=layer.name,
                after=self.after,
                kind=phase.kind,
                octets=phase.octets,
                group=group,
            )
        )
        ended = self._append(
            TraceCompute(
                where=f"line {layer.line}",
                after=(one,),
                duration_ns=layer.update_ns,
                stream=None,
            )
        )
        if blocks:
            self.after = (ended,)
        return (ended,)

    def wait(self, ended: tuple[int, ...]) -> None:
        """Let the next operation wait for what is ``ended``, too."""
        self.after = (*self.after, *ended)

    def _append(self, operation: TraceOperation) -> int:
        self.operations.append(operation)
        return len(self.operations) - 1


class _LayerReader:
    def __init__(self, file: TraceFile, options: ReadOptions) -> None:
        self._file, self._options = file, options
        self._lines = file.text.splitlines()
        self._policy = ""
        self._settings: dict[str, int] = {}
        #: by initiating layer: the checkpoint from which it computes forward again
        self._again: dict[int, int] = {}

    def read(self) -> Trace:
        self._header()
        grid = self._grid()
        layers = self._layers(grid)
        self._check_order(len(layers))
        operations = 9 * len(layers) + 3 * sum(at - first for at, first in self._again.items())
        if operations * grid.ranks > MOST_OPERATIONS:
            raise self._file.wrong(
                2,
                f"{len(layers)} layers at {grid.ranks} ranks are more than {MOST_OPERATIONS} "
                "operations; cut out some of the layers, or take fewer ranks",
            )
        groups: dict[str, tuple[int, ...]] = {}
        lists = []
        for rank in range(grid.ranks):
            one = _RankList(rank, grid, groups)
            self._step(one, layers)
            lists.append(one.operations)
        return Trace(self._file.stem, tuple(lists), groups)

    def _step(self, one: _RankList, layers: Sequence[_Layer]) -> None:
        if self._policy == MICRO:
            for layer in layers:
                one.collective(layer, layer.weight_gradient, weights=True, blocks=True)
            return
        if self._policy in DLRM:
            self._recommendation_step(one, layers)
            return
        for layer in layers:
            one.compute(layer, layer.forward, "forward")
            if self._policy != DATA:
                one.collective(layer, layer.forward, weights=False, blocks=True)
        for number, layer in reversed(list(enumerate(layers))):
            for again in layers[self._again.get(number, number) : number]:
                one.compute(again, again.forward, "forward again")
                one.collective(again, again.forward, weights=False, blocks=True)
            if self._policy == DATA:
                one.compute(layer, layer.weight_gradient, "weight gradient")
                one.collective(layer, layer.weight_gradient, weights=True, blocks=False)
                if layer is not layers[0]:
                    one.compute(layer, layer.input_gradient, "input gradient")
                continue
            one.compute(layer, layer.input_gradient, "input gradient")
            one.collective(layer, layer.input_gradient, weights=False, blocks=True)
            one.compute(layer, layer.weight_gradient, "weight gradient")
            if self._policy != MODEL:
                one.collective(layer, layer.weight_gradient, weights=True, blocks=False)

    def _recommendation_step(self, one: _RankList, layers: Sequence[_Layer]) -> None:
        """Write the step of a DLRM: embeddings travel while the bottom layers compute."""
        bottom, first = self._settings["DLRM_LAST_BOTTOM_LAYER"], layers[0]
        embeddings: tuple[int, ...] = ()
        for number, layer in enumerate(layers):
            one.compute(layer, layer.forward, "forward")
            if layer is first and layer.forward.kind is Collective.ALL_TO_ALL:
                embeddings = one.collective(layer, layer.forward, weights=True, blocks=False)
            elif number == bottom:
                one.wait(embeddings)
        for number, layer in reversed(list(enumerate(layers))):
            one.compute(layer, layer.weight_gradient, "weight gradient")
            one.collective(layer, layer.weight_gradient, weights=True, blocks=False)
            if layer is not first:
                one.compute(layer, layer.input_gradient, "input gradient")
            if number == bottom + 1:
                one.collective(first, first.input_gradient, weights=True, blocks=False)

    def _check_order(self, layers: int) -> None:
        """Find what the order of layers needs of the header; TraceRefusal if it makes no sense."""
        if self._policy in DLRM:
            bottom = self._settings.setdefault("DLRM_LAST_BOTTOM_LAYER", -1)
            if not 1 <= bottom < layers - 1:
                raise self._file.wrong(
                    1,
                    "DLRM_LAST_BOTTOM_LAYER is missing, or there is no layer before or behind it; "
                    f"write {self._policy} and a number from 1 to {max(1, layers - 2)}",
                )
        checkpoints, initiating = (
            self._layer_list(name, layers) for name in ("checkpoints", "checkpoint_initiates")
        )
        if (checkpoints or initiating) and self._policy != TRANSFORMER[1]:
            raise self._file.wrong(
                1,
                f"policy {self._policy} has no checkpoints; take them out of the header, or write "
                f"{TRANSFORMER[1]}",
            )
        for number in initiating:
            before = [one for one in checkpoints if one < number]
            if not before or any(max(before) < one < number for one in initiating):
                raise self._file.wrong(
                    1,
                    f"layer {number} of checkpoint_initiates has no checkpoint between the one "
                    "that initiates before it and itself; correct the header",
                )
            self._again[number] = max(before)

    def _layer_list(self, name: str, layers: int) -> list[int]:
        found = re.search(_LAYER_LIST.format(name=name), self._lines[0])
        listed = [int(word) for word in found[2].split()] if found else []
        if found and int(found[1]) != len(listed):
            raise self._file.wrong(
                1, f"{name} announces {found[1]} layers and lists {len(listed)}; correct one"
            )
        for number in listed:
            if number >= layers:
                raise self._file.wrong(
                    1, f"{name} has layer {number}, and there are 0 to {layers - 1}; correct it"
                )
        return listed

    def _header(self) -> None:
        first = self._lines[0] if self._lines else ""
        words = first.split()
        self._policy = words[0] if words else ""
        rest = first.strip()[len(self._policy) :]
        if self._policy not in _POLICIES:
            raise self._file.wrong(
                1,
                f"policy {self._policy[:40]!r} is none of {', '.join(_POLICIES)}; which ranks "
                "others take together depends on a simulator's network: write a plain list",
            )
        for name, text in _SETTING.findall(rest):
            self._settings.setdefault(name, int(text))
        if self._policy in DLRM and rest.strip().isdecimal():
            self._settings["DLRM_LAST_BOTTOM_LAYER"] = int(rest.strip()[:9])
        if self._settings.get("pp", 1) != 1:
            raise self._file.wrong(
                1,
                f"pp is {self._settings['pp']}, but the layers are those of one stage and the "
                "file does not say which; take a workload with pp: 1",
            )

    def _grid(self) -> _Grid:
        stated = self._settings.get("all_gpus", 0)
        ranks = stated or self._options.ranks
        if not 1 <= ranks <= MOST_RANKS:
            raise self._file.wrong(
                1,
                f"the number of ranks is missing; state 1 to {MOST_RANKS} by --param ranks=N",
            )
        if self._options.ranks not in (0, ranks):
            raise self._file.wrong(
                1, f"all_gpus is {ranks}, but --param ranks={self._options.ranks}; leave that out"
            )
        tensor = {DATA: 1, MICRO: 1, MODEL: ranks, **dict.fromkeys(DLRM, 1)}.get(self._policy)
        if tensor is None:
            tensor = self._settings.get("model_parallel_NPU_group", 0)
        if not tensor or ranks % tensor:
            raise self._file.wrong(
                1,
                f"model_parallel_NPU_group is {tensor}, which does not divide {ranks} ranks; "
                "correct it",
            )
        expert = self._settings.get("ep", 1)
        if not expert or ranks // tensor % expert:
            raise self._file.wrong(
                1, f"ep is {expert}, which does not divide {ranks // tensor} replicas; correct it"
            )
        return _Grid(ranks, tensor, expert)

    def _layers(self, grid: _Grid) -> list[_Layer]:
        count = self._number(2, "the number of layers", (self._lines[1:2] or [""])[0].strip())
        rows = [
            (line, words) for line, text in enumerate(self._lines[2:], 3) if (words := text.split())
        ]
        if len(rows) < count or not count:
            raise self._file.wrong(
                2, f"{count} layers are announced and {len(rows)} lines follow; correct one"
            )
        if len(rows) > count:
            raise self._file.wrong(
                rows[count][0], f"{count} layers are announced and this is one more; correct one"
            )
        return [self._layer(line, words, grid) for line, words in rows]

    def _layer(self, line: int, words: Sequence[str], grid: _Grid) -> _Layer:
        if len(words) < _COLUMNS:
            raise self._file.wrong(
                line, f"a layer has {_COLUMNS} columns and this one {len(words)}; complete it"
            )
        forward, inputs, weights = (
            self._phase(line, words[at : at + 3], grid, at == 8) for at in (2, 5, 8)
        )
        update = self._number(line, "the update time", words[11])
        return _Layer(line, words[0][:80], forward, inputs, weights, update)

    def _phase(self, line: int, words: Sequence[str], grid: _Grid, weights: bool) -> _Phase:
        time_ns = self._number(line, "a computation's time", words[0])
        name, _, suffix = words[1].partition("_")
        octets = self._number(line, "a size", words[2])
        if words[1] in _IGNORED:
            return _Phase(time_ns, None, 0, "")
        kind = _COLLECTIVES.get(name)
        if kind is None or suffix not in ("", "EP", "DP_EP"):
            raise self._file.wrong(
                line,
                f"collective {words[1][:40]!r} is none of {', '.join(_COLLECTIVES)} (with _EP or "
                "_DP_EP), NONE; correct it",
            )
        if kind is Collective.ALL_GATHER:
            octets *= self._parts(line, grid.members(suffix, weights))
        return _Phase(time_ns, kind, octets, suffix)

    def _parts(self, line: int, members: int) -> int:
        """Return by what the size of an all-gather is multiplied to be that of the whole."""
        if self._options.gathered == PART:
            return members
        if self._options.gathered != WHOLE and "all_gpus" not in self._settings:
            raise self._file.wrong(
                line,
                "the size of an all-gather is the whole in SimAI and a part in ASTRA-sim, and the "
                "header is of neither for sure; say --param gathered=whole, or gathered=part",
            )
        return 1

    def _number(self, line: int, name: str, text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise self._file.wrong(line, f"{name} is {text[:40]!r}, no whole number; correct it")
        return int(text)


def _read(files: Sequence[TraceFile], options: ReadOptions) -> Trace:
    return _LayerReader(files[0], options).read()


def _recognises(head: bytes) -> bool:
    words = head.split(None, 1)
    return bool(words) and words[0].decode("ascii", "replace").isupper()


FORMATS.register(
    TraceFormat(
        name="layers",
        meaning="workload text of ASTRA-sim 1.0, SimAI and AICB",
        suffixes=(".txt",),
        recognises=_recognises,
        begins="begins with a policy in capitals",
        read=_read,
        facts=("ranks", "gathered"),
    )
)
