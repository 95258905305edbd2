"""Evidence for the fidelity verdict of one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from emulator.asic.bpf.layout import Balancing, DropReason
from emulator.asic.switch_choice import SwitchChoice
from emulator.measures.port_record import PortRecord
from emulator.run.attempt import Attempt
from emulator.run.fidelity import Evidence
from emulator.scenario import Outcome

#: Balancings by which every flow keeps its path.
_KEEP_PATHS = frozenset({Balancing.KERNEL, Balancing.FLOW})


def row_evidence(attempt: Attempt, outcome: Outcome) -> Evidence:
    """Return the evidence on the measured iterations of ``attempt``, on the host's clock."""
    assert attempt.host is not None
    gpus = [gpu.name for gpu in attempt.plan.topology.gpus]
    sockets = {
        f"{gpus[rank]} {name}": count for (rank, name), count in attempt.host.nic_losses.items()
    }
    pauses = [port.pause for port in outcome.ports.values() if port.pause is not None]
    return Evidence(
        machine=attempt.host.machine(),
        foreign_drops={**sockets, **headroom_drops(attempt.stage.switch, outcome.ports)},
        overtaken=_overtaken(attempt, outcome, gpus),
        late_fault_ns=attempt.late_fault_ns,
        late_pause_ns=max((pause.late_ns for pause in pauses), default=0),
    )


def headroom_drops(switch: SwitchChoice | None, ports: Mapping[str, PortRecord]) -> dict[str, int]:
    """Return the drops of lossless buffers, by port, where headroom is what the fabric needs.

    A pause that is in time leaves room for all that still arrives.  With a headroom that the user
    has chosen they are what the switch would do.
    """
    if switch is None or switch.pausing is None or switch.pausing.headroom is not None:
        return {}
    return {
        f"{name} headroom": count
        for name, port in ports.items()
        if (count := port.drops.get(DropReason.HEADROOM.name.lower(), 0))
    }


def _overtaken(attempt: Attempt, outcome: Outcome, gpus: list[str]) -> dict[str, int]:
    """Return the packets out of order, by GPU, where nothing but this machine can be the reason.

    Every flow keeps its path, and nothing was lost on it.
    """
    counter, switch = attempt.stage.transport.out_of_order, attempt.stage.switch
    keeps_paths = switch is None or switch.method in _KEEP_PATHS
    if not counter or not keeps_paths or attempt.trial.faults or attempt.moments:
        return {}
    lost: Counter[str] = Counter()
    for port in outcome.ports.values():
        lost.update(dropped=port.dropped + port.kernel.tx_dropped, trimmed=port.trimmed)
    if lost.total() or (attempt.host is not None and attempt.host.nic_losses.total()):
        return {}
    return {
        gpus[rank]: counts[counter]
        for rank, counts in outcome.endpoints.items()
        if counts.get(counter)
    }
