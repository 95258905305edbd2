"""The transports that a run can use, each fitted to the fabric it runs on.

The factories named in a :class:`~emulator.transports.transport_choice.TransportChoice` are called
where endpoints are made (:class:`~emulator.sim.endpoint.endpoint_spec.EndpointSpec`); everything
else happens in the runner, before any process exists.
"""

from __future__ import annotations

from collections.abc import Mapping

from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.errors import UserError
from emulator.transports.transport_choice import TRANSPORTS, RunTransport, TransportChoice
from topologies.advice import near
from topologies.model import Topology

__all__ = [
    "TRANSPORTS",
    "TransportChoice",
    "default_switch",
    "describe_options",
    "fit",
    "is_secured",
]


def fit(
    requested: str, topology: Topology, *, seed: int = 0, switch: SwitchChoice | None = None
) -> TransportChoice:
    """The transport ``NAME[:PARAMETER=VALUE,...]`` for ``topology`` behind switches of ``switch``.

    :class:`UserError` if there is none, it has no such parameter, or it cannot.
    """
    transport, options = _parsed(requested)
    return transport.fit(requested, options, topology, seed, switch)


def default_switch(requested: str, topology: Topology) -> str:
    """Return the switch that ``requested`` runs on in ``topology`` where the user names none.

    :class:`UserError` as for :func:`fit`.
    """
    transport, options = _parsed(requested)
    return transport.switch(options, topology)


def is_secured(requested: str) -> bool:
    """Return whether the transport ``requested`` encrypts: captures of headers show nothing then.

    :class:`UserError` as for :func:`fit`.
    """
    _, options = _parsed(requested)
    return options.get("tss", "off") != "off"


def describe_options() -> str:
    """The parameters of all transports and their values, the default first, a line each."""
    return "\n\n\b\n".join(
        f"Parameters of the transport {name}, the default first:\n\n\b\n{transport.describe()}"
        for name, transport in TRANSPORTS.items()
    )


def _parsed(requested: str) -> tuple[RunTransport, Mapping[str, str]]:
    name, _, text = requested.partition(":")
    transport = TRANSPORTS.get(name)
    if transport is None:
        raise UserError(f"there is no transport {name!r}{near(name, TRANSPORTS)}")
    return transport, transport.parse(name, text)
