"""Choice of an algorithm as NCCL chooses: by a model of time for each algorithm and protocol.

The time of an algorithm under a protocol is latency + size / bandwidth. The least time wins (NCCL's
tuning model, in its source of 2026).  With n ranks in N hosts of g:

- ring: 2(n-1) steps, of which 2(N-1) go between hosts; its bandwidth is n / 2(n-1) of the rate of
  the NICs of a host together;
- tree: 2 ((g-1) steps inside a host + log2(N) between hosts); its bandwidth is half of 0.92 of
  that rate.

Protocols matter for the choice only: this transport has none of NCCL's.  NCCL's correction of tree
bandwidth by size, and the longer latency of rings over many hosts, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from emulator.errors import UserError
from scenarios.collectives.communicators import Communicator
from topologies.advice import meant
from topologies.parts.attachment import nic_rate_bps


@dataclass(frozen=True)
class ProtocolModel:
    """Constants of an algorithm under a protocol: latencies in us, and a factor of the rate."""

    base_us: float
    network_us: float
    nvlink_us: float
    bandwidth: float


#: NCCL's constants, by algorithm and protocol.
Tuning = Mapping[str, Mapping[str, ProtocolModel]]
NCCL_TUNING: Tuning = {
    "ring": {
        "LL": ProtocolModel(6.6, 2.7, 0.6, 0.5),
        "LL128": ProtocolModel(14.0, 4.0, 1.9, 0.92),
        "Simple": ProtocolModel(8.4, 14.0, 3.4, 1.0),
    },
    "tree": {
        "LL": ProtocolModel(6.8, 5.0, 0.6, 0.5 * 0.92),
        "LL128": ProtocolModel(14.0, 8.5, 1.25, 0.92 * 0.92),
        "Simple": ProtocolModel(8.4, 14.0, 4.0, 0.92),
    },
}
#: The word by which a user leaves the choice to the model.
AUTO = "auto"
#: Algorithms of the model, and ours that stand for them: NCCL's Tree is a double tree.
OURS = {"ring": "ring", "tree": "double-tree"}
_FIELDS = tuple(ProtocolModel.__dataclass_fields__)


@dataclass(frozen=True)
class Choice:
    """The algorithm that the model takes, and its time for each, in us, by algorithm/protocol."""

    algorithm: str
    times_us: Mapping[str, float]


def choose_allreduce(tuning: Tuning, communicator: Communicator, size: int) -> Choice:
    hosts = communicator.hosts
    members, width = len(communicator), max(len(host) for host in hosts)
    rate = _host_rate(communicator)
    times: dict[str, float] = {}
    for algorithm, protocols in tuning.items():
        for protocol, model in protocols.items():
            inside = model.nvlink_us
            if algorithm == "ring":
                steps, between = 2 * (members - 1), 2 * (len(hosts) - 1)
                latency = (steps - between) * inside + between * model.network_us
                share = members / steps
            else:
                latency = 2 * ((width - 1) * inside + math.log2(len(hosts)) * model.network_us)
                share = 0.5
            bandwidth = rate * model.bandwidth * share
            times[f"{algorithm}/{protocol}"] = model.base_us + latency + size / (1000 * bandwidth)
    best = min(times, key=times.__getitem__)
    return Choice(OURS[best.partition("/")[0]], times)


def _host_rate(communicator: Communicator) -> float:
    """Return the rate of the NICs of a host's members together, in GB/s.

    Inside one host it is that of the scale-up network of one GPU.
    """
    topology = communicator.topology
    host = min(communicator.hosts, key=len)
    gpus = [topology.gpus[communicator.ranks[position]] for position in host]
    if len(communicator.hosts) == 1:
        (server,) = (one for one in topology.servers if one.name == gpus[0].server)
        return server.scale_up.rate_bps / 8e9
    return sum(nic_rate_bps(topology, gpu.name) for gpu in gpus) / 8e9


def read_tuning(path: Path) -> Tuning:
    """Read constants that replace NCCL's, as YAML: ``ring: {LL: {base_us: 6.6, ...}, ...}``.

    What the file leaves out stays as it is.  Raises UserError for what the model does not have.
    """
    # Few runs read a file of constants, and ruamel takes as long as all other modules of it.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"tuning {path}: {reason}; give a YAML file of constants") from None
    try:
        given = YAML(typ="safe").load(text)
    except YAMLError as error:
        first = str(error).splitlines()[0]
        raise UserError(f"tuning {path} is not YAML: {first}; mend the file") from None
    tuning = {name: dict(models) for name, models in NCCL_TUNING.items()}
    for algorithm, protocols in _named(path, given, tuning, "algorithm").items():
        for protocol, constants in _named(path, protocols, tuning[algorithm], "protocol").items():
            numbers = _named(path, constants, dict.fromkeys(_FIELDS), "constant")
            for name, value in numbers.items():
                positive = isinstance(value, int | float) and 0 <= value < math.inf
                if not positive or (name == "bandwidth" and value == 0):
                    raise UserError(
                        f"tuning {path}: {algorithm} {protocol} {name} is {value!r}; write a "
                        "number, for bandwidth above 0"
                    )
            known = {field: getattr(tuning[algorithm][protocol], field) for field in _FIELDS}
            tuning[algorithm][protocol] = ProtocolModel(**{**known, **numbers})
    return tuning


def _named(path: Path, given: object, known: Mapping[str, object], what: str) -> dict[str, object]:
    if not isinstance(given, dict) or not given:
        raise UserError(
            f"tuning {path} has {given!r} where it has names of {what}s; known are "
            f"{', '.join(known)}"
        )
    for name in given:
        if name not in known:
            raise UserError(
                f"tuning {path} has {what} {name!r}{meant(str(name), known)}; known are "
                f"{', '.join(known)}"
            )
    return dict(given)
