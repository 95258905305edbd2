"""A PyTorch script whose torch.distributed is the fabric.

Ranks of the script are the GPUs of the fabric, in their order.  Each call of torch.distributed is a
collective of scenarios.collectives, over real tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.pxn import Pxn
from emulator.scenario import Outcome, Scenario, Trial, parameter, refuse_idle
from emulator.sim.endpoint.operations.schedule import Schedule
from emulator.torch_backend.call_records import by_site
from emulator.torch_backend.compiled_calls import Compile
from emulator.torch_backend.driver import ScriptDriver
from emulator.torch_backend.fabric_calls import ROOM_OCTETS
from scenarios.collectives.algorithm_registry import algorithms
from scenarios.collectives.collective_parameters import (
    SLICE_BYTES,
    channels_parameter,
    library_parameter,
    protocol_parameter,
)
from scenarios.collectives.communicators import Communicator
from scenarios.collectives.library import NO_LIBRARY, choose
from scenarios.torch_script.script_collectives import ALGORITHMS, ScriptCollectives
from topologies.model import Topology
from topologies.parts.design_parameters import SIZE

COLUMNS = (
    TableColumn("script", "script", "", 16),
    TableColumn("ranks", "ranks", "", 6),
    TableColumn("calls", "calls", "", 7),
    TableColumn("size_bytes", "size", "(B)", 12),
    TableColumn("time_us", "time", "(us)", 12),
    TableColumn("exchange_us", "exchange", "(us)", 12),
    TableColumn(
        "exposed",
        "exposed",
        "(%)",
        8,
        1,
        percent=True,
        words="communication was exposed for {} % of the time",
    ),
)
#: Makes the driver of a script for the ranks of hosts (numbers, by rank) and their collectives.
MakeDriver = Callable[[Sequence[int], Compile], ScriptDriver]


def _chosen(kind: str) -> str:
    default = ALGORITHMS[kind]
    word: str = parameter(
        default,
        choices=lambda: algorithms(kind, first=default),
        help=f"algorithm of {kind}" + ("; auto: as NCCL's model says" if default == "auto" else ""),
    )
    return word


@dataclass(frozen=True, kw_only=True)
class ScriptParameters:
    """How a script's collectives are done."""

    allreduce: str = _chosen("allreduce")
    allgather: str = _chosen("allgather")
    reducescatter: str = _chosen("reducescatter")
    broadcast: str = _chosen("broadcast")
    reduce: str = _chosen("reduce")
    alltoall: str = _chosen("alltoall")
    library: str = library_parameter()
    protocol: str = protocol_parameter()
    channels: int = channels_parameter()
    slice_bytes: int = parameter(
        SLICE_BYTES, SIZE, help="octets of the pieces in which data move on"
    )

    def __post_init__(self) -> None:
        if self.library == NO_LIBRARY:
            refuse_idle(self, ("protocol",), f"beside library={NO_LIBRARY}")


@dataclass
class TorchScript:
    """The script ``name``, which ``make_driver`` drives on ``ranks`` (None: all GPUs).

    ``pxn`` is the mode of ``--pxn``.
    """

    name: str
    make_driver: MakeDriver
    ranks: int | None
    pxn: str

    Parameters = ScriptParameters
    COLUMNS = COLUMNS

    def topology(self, parameters: ScriptParameters) -> str:
        """Return hosts of equally many GPUs, two at least, or the usual cluster."""
        if (ranks := self.ranks) is None:
            return "rail_clos"
        gpus = max(one for one in range(1, 9) if ranks % one == 0 and one <= max(1, ranks // 2))
        return f"rail_clos:hosts={ranks // gpus},gpus_per_host={gpus}"

    def schedules(self, parameters: ScriptParameters, topology: Topology, seed: int) -> list[Trial]:
        """Return the one trial, whose operations come while it goes on."""
        gpus = len(topology.gpus)
        ranks = gpus if self.ranks is None else self.ranks
        if ranks > gpus:
            raise UserError(
                f"--ranks is {ranks} and topology {topology.name} has {gpus} GPUs; take a larger "
                "one, or fewer ranks"
            )
        named = {
            one.name: getattr(parameters, one.name)
            for one in fields(parameters)
            if one.name in ALGORITHMS
        }
        if parameters.library != NO_LIBRARY and ranks > 1:  # what it has not is refused now
            choose(
                parameters.library,
                Communicator(tuple(range(ranks)), topology),
                0,
                algorithm=parameters.allreduce,
                protocol=parameters.protocol,
            )
        compile_call = ScriptCollectives(
            pxn=Pxn(topology, self.pxn),
            slice_bytes=parameters.slice_bytes,
            algorithms=named,
            library=parameters.library,
            protocol=parameters.protocol,
            channels=parameters.channels,
        )
        driver = self.make_driver(compile_call.hosts[:ranks], compile_call)
        return [
            Trial(
                collective="script",
                size_bytes=0,
                compile=lambda: [Schedule(rank=rank, buffers={}) for rank in range(gpus)],
                inputs=lambda rank: {},
                expected=lambda rank: {},
                checked=False,
                warmups=0,
                drive=driver,
                room_octets=ROOM_OCTETS,
                executed=driver.executed,
                facts={"script": self.name, "ranks": ranks},
            )
        ]

    def measures(
        self, parameters: ScriptParameters, topology: Topology, trial: Trial, outcome: Outcome
    ) -> Mapping[str, object]:
        """Return how much the script has called, and the table of its calls by line."""
        driver = trial.drive
        assert isinstance(driver, ScriptDriver)
        rows = by_site(driver.records)
        ranks = int(str(trial.facts["ranks"]))
        stood_ns = sum(sum(one.waited.values()) for one in driver.records)
        return {
            "calls": len(driver.records),
            "size_bytes": sum(int(str(row["bytes"])) for row in rows),
            "exchange_us": sum(float(str(row["time_us"])) for row in rows),
            "exposed": stood_ns / ranks / outcome.mean_ns if outcome.mean_ns else None,
            "call_sites": rows,
            "ideal_us": None,
            "efficiency": None,
        }


def scenario_of(name: str, make_driver: MakeDriver, ranks: int | None, pxn: str) -> Scenario:
    """Return the scenario of the script ``name``."""
    form = TorchScript(name, make_driver, ranks, pxn)
    form.__doc__ = __doc__
    return Scenario(form, "torchrun", __file__)
