"""A connection from its options to its exit status."""

from __future__ import annotations

import contextlib
import secrets
import sys
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from emulator.dataplane.clock import Clock
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.errors import UserError
from emulator.lab.standalone.endpoint_namespace import enter_namespace
from emulator.lab.standalone.hca.card import Card
from emulator.lab.standalone.hca.configuration import ELSEWHERE, path_mtu_for
from emulator.lab.standalone.hca.exchange import CardExchange, exchange
from emulator.lab.standalone.hca.hca_requests import (
    ANY_PEER,
    FIELDS,
    THE_REGION,
    at_peer,
    error_name,
    must_be_possible,
)
from emulator.lab.standalone.output_file import make_folder
from emulator.lab.standalone.report import EventReport
from emulator.lab.standalone.script import endpoint_parameters as parameters
from emulator.lab.standalone.script.offers import receives, region
from emulator.lab.standalone.script.phrases import ip, number
from emulator.lab.standalone.script.requested_operations import Around, Message, messages_of
from emulator.lab.standalone.session import Manners, Stop
from emulator.lab.standalone.stand_alone import StandAlone, StandAloneWork, serve
from emulator.rocev2.config import HcaConfig
from emulator.rocev2.connections import Connection
from emulator.rocev2.hca import HostChannelAdapter
from emulator.rocev2.wire.codes import GSI_QPN, MAX_MESSAGE, PSN_MASK, QPN_MASK, UDP_PORT
from emulator.sim.endpoint.nic.interface import NetworkInterface, interface, mac_of, own_address
from uet.ses.address import Address

#: The R_Key of a region that is offered as "default".
DEFAULT_KEY = 0x1234_5678
_FRAMES = TransportFrames(udp_ports=(UDP_PORT,), ip_protocols=())
_FIRST_QPN = 0x100


@dataclass(frozen=True, kw_only=True)
class StandAloneHca(StandAlone):
    """One endpoint as the command line describes it; ``values`` are fields of HcaConfig.

    ``peer`` is the peer's card, or where cards are exchanged.
    """

    peer: Card | CardExchange
    qpn: int | None = None
    psn: int | None = None
    peer_mac: str | None = None


def run(requested: StandAloneHca) -> int:
    """Be that endpoint until its end; the exit status.  Raises :class:`UserError`."""
    seed = secrets.randbits(32) if requested.seed is None else requested.seed
    values: dict[str, Any] = {**(requested.gpu.config if requested.gpu else {}), **requested.values}
    values |= parameters.settings(requested.settings, HcaConfig, ELSEWHERE)
    # What needs nothing of the kernel is judged first, with an address that stands for any.
    draft = parameters.configured(
        HcaConfig, {**values, "address": "192.0.2.1", "mac": "02:00:00:00:00:00"}
    )
    work = _work(requested, draft, seed)
    if requested.save is not None:
        make_folder(requested.save)

    with Stop().listening() as stop, contextlib.ExitStack() as stack:
        if requested.netns is not None:
            enter_namespace(requested.netns)
        found = interface(requested.interface)
        found.must_work()
        return _live(requested, work, values, found, stop, stack)


def _work(requested: StandAloneHca, draft: HcaConfig, seed: int) -> StandAloneWork:
    messages: list[Message] = []
    if requested.phrases or requested.script is not None:
        around = Around(
            peer=ANY_PEER,
            peers=[ANY_PEER],
            home=Address(),
            key=THE_REGION,
            seed=seed,
            fields=FIELDS,
            error=error_name,
            longest=MAX_MESSAGE,
        )
        messages = messages_of(requested.phrases, requested.script, around)
        for message in messages:
            must_be_possible(message)
    work = StandAloneWork(
        seed,
        [
            offer
            for text in requested.receives
            for offer in receives(text, requested.receive_after, matching=())
        ],
        [
            region(text, seed, default_key=DEFAULT_KEY, more=("address",))
            for text in requested.regions
        ],
        messages,
    )
    _hca(draft, work)  # what is wrong with regions is reported now
    return work


def _hca(config: HcaConfig, work: StandAloneWork) -> HostChannelAdapter:
    hca = HostChannelAdapter(config)
    try:
        for one in work.regions:
            hca.register(
                one.memory,
                key=one.key,
                writable=one.writable,
                readable=one.readable,
                address=one.address,
            )
    except ValueError as error:
        raise UserError(str(error)) from None
    return hca


def _own_card(
    requested: StandAloneHca, work: StandAloneWork, found: NetworkInterface, mtu: int | None
) -> Card:
    version = requested.version
    if version is None and isinstance(requested.peer, Card):
        version = ip_address(requested.peer.address).version
    address = own_address(found, requested.address and ip(requested.address, "--address"), version)
    qpn, psn = requested.qpn, requested.psn
    if qpn is None:
        qpn = _FIRST_QPN + secrets.randbelow(QPN_MASK - _FIRST_QPN)
    if psn is None:
        psn = secrets.randbits(24)
    first = work.regions[0] if work.regions else None
    return Card(
        address=address,
        qpn=number(qpn, "--qpn", low=GSI_QPN + 1, high=QPN_MASK - 1),
        psn=number(psn, "--psn", high=PSN_MASK),
        mtu=path_mtu_for(found.mtu, version=ip_address(address).version, requested=mtu),
        rkey=None if first is None else first.key,
        vaddr=0 if first is None else first.address,
        length=0 if first is None else len(first.memory),
    )


def _live(
    requested: StandAloneHca,
    work: StandAloneWork,
    values: dict[str, Any],
    found: NetworkInterface,
    stop: Stop,
    stack: contextlib.ExitStack,
) -> int:
    own = _own_card(requested, work, found, values.get("mtu"))
    report = EventReport(sys.stdout, table=requested.table)
    clock = Clock.start(requested.dilation)
    capture = requested.capture(found, f"uetemu hca {requested.role} {own.address}", stack)
    # Before cards are exchanged: what the peer sends at once then waits in the ring.
    port = requested.open_port(found, _FRAMES, clock, stack)
    report.event("card", whose="own", **own.as_data())
    peer = requested.peer
    if isinstance(peer, CardExchange):
        time_limit = requested.limits.timeout or requested.limits.duration
        peer = exchange(own, peer, stop, None if time_limit is None else time_limit / 1e9)
    report.event("card", whose="peer", **peer.as_data())
    config = _configured(requested, values, own, peer, found, stop)
    for message in work.messages:
        at_peer(message, peer)
    hca = _hca(config, work)

    def at_end() -> dict[str, object]:
        qp = hca.queue_pair(own.qpn)
        assert qp is not None
        return {"qp": {"qpn": own.qpn, "peer_qpn": peer.qpn, "state": qp.state.value}}

    settings = parameters.as_data(config)
    return serve(
        requested,
        work,
        hca,
        port,
        report,
        stop,
        found=found,
        configuration=config,
        # without what the cards have exchanged
        settings={name: value for name, value in settings.items() if name != "connections"},
        regions=[
            {"key": f"{one.key:#x}", "address": one.address, "size": len(one.memory)}
            for one in work.regions
        ],
        manners=Manners(),
        capture=capture,
        facts={"path_mtu": config.mtu},
        at_end=at_end,
    )


def _configured(
    requested: StandAloneHca,
    values: dict[str, Any],
    own: Card,
    peer: Card,
    found: NetworkInterface,
    stop: Stop,
) -> HcaConfig:
    if ip_address(peer.address).version != ip_address(own.address).version:
        raise UserError(
            f"the peer's address {peer.address} and the own one {own.address} are not of one IP"
            " version; choose the own one with -4, -6 or --address"
        )
    mac = requested.peer_mac or mac_of(found, peer.address, lambda: stop.number is not None)
    connection = Connection(
        local_qpn=own.qpn, remote_qpn=peer.qpn, first_psn=own.psn, expected_psn=peer.psn
    )
    return parameters.configured(
        HcaConfig,
        {
            **values,
            "mtu": min(own.mtu, peer.mtu),
            "address": own.address,
            "mac": found.mac,
            "neighbours": {peer.address: mac},
            "connections": {peer.address: (connection,)},
        },
    )
