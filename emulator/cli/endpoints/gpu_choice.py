"""``--gpu``: the GPU of a running lab that an endpoint is, and the addresses of others by name."""

from __future__ import annotations

from typing import Any

import click

from emulator.dataplane.cleanup import require_root
from emulator.errors import UserError

#: Fields of a run's configuration that the endpoint's own options and port decide.
_OWN = ("address", "mac", "neighbours", "ports", "payload_mtu", "mesh", "endless_receives")

GPU = click.option(
    "--gpu",
    metavar="[LAB:]GPU",
    help="Be this GPU of a running lab: in its namespace, on its port, in the lab's time (its"
    " dilation), configured for the fabric as in a run; --peer may name GPUs, too.  Of the options"
    " only --timeout, --duration, --linger and --start-at stay in this machine's time.",
)


def place(options: dict[str, Any], transport: str) -> None:
    """Put what ``--gpu`` says into ``options``, and addresses in place of names of GPUs.

    ``transport`` is what the endpoint speaks, as of a run.  Raises :class:`UserError`.
    """
    requested = options.pop("gpu")
    options["gpu"] = None
    if requested is None:
        if options["interface"] is None:
            raise UserError("say which port: -i NAME, or --gpu [LAB:]GPU in a running lab")
        return
    for name in ("interface", "netns", "address", "version"):
        if options[name] is not None:
            raise UserError(
                f"--gpu {requested} says the port and its address: leave -i, -n, -a, -4 and -6 out"
            )
    require_root("run an endpoint")
    # An endpoint on a named port, and --help, need none of these.
    from emulator.cli.labs.lab_choice import choose_lab, with_node
    from emulator.dataplane.kernel import namespaces
    from emulator.dataplane.lab_record import load_topology
    from emulator.dataplane.switch import switch_choice
    from emulator.lab.standalone.endpoint import LabGpu
    from emulator.run.endpoint_specs import endpoint_specs
    from emulator.transports import fit
    from topologies.addressing import gpu_address
    from topologies.advice import question

    lab, _, name = requested.rpartition(":")
    record = with_node(choose_lab(lab or None, "as LAB:GPU"), name)
    topology = load_topology(record.lab)
    names = [gpu.name for gpu in topology.gpus]
    if name not in names:
        raise UserError(f"lab {record.lab} has no GPU {name!r}; {question(name, names)}")
    switch = None if record.switch is None else switch_choice.parse(record.switch)
    spec = endpoint_specs(
        topology,
        fit(transport, topology, seed=record.seed, switch=switch),
        namespace=lambda node: str(namespaces.path_of(record.lab, node)),
        nic_delays=record.cable_delay == "nic",
        seed=record.seed,
        memory_octets=1,
        pausing=switch is not None and switch.pausing is not None,
    )[names.index(name)]
    if len(spec.ports) > 1:
        ports = " or ".join(f"-i {port.interface}" for port in spec.ports)
        raise UserError(
            f"the NIC of {name} has several ports, and one endpoint is on one: take {ports} with"
            f" -n {spec.netns}"
        )
    (port,) = spec.ports
    options |= {"interface": port.interface, "netns": spec.netns, "address": spec.address}
    options["gpu"] = LabGpu(
        dilation=record.dilation,
        config={key: value for key, value in spec.transport_config.items() if key not in _OWN},
        nic={
            "path_delays": port.path_delays,
            "by_class": spec.send_by_class,
            "queue_frames": spec.send_queue_frames,
            "slots": spec.receive_slots,
        },
    )
    addresses = {gpu.name: str(gpu_address(gpu).ip) for gpu in topology.gpus}
    for option in ("peers", "peer", "connect"):
        value = options.get(option)
        if isinstance(value, str):
            options[option] = addresses.get(value, value)
        elif value is not None:
            options[option] = tuple(addresses.get(one, one) for one in value)
