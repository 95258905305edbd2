"""An endpoint from its options to its exit status."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from emulator.dataplane.clock import Clock
from emulator.errors import UserError
from emulator.lab.standalone.endpoint_namespace import enter_namespace
from emulator.lab.standalone.fep.event_log import EventLog, WatchedTrace
from emulator.lab.standalone.fep.key_file import write_keys
from emulator.lab.standalone.output_file import make_folder
from emulator.lab.standalone.report import EventReport
from emulator.lab.standalone.script import endpoint_parameters as parameters
from emulator.lab.standalone.script.expected_error import explanation
from emulator.lab.standalone.script.offers import receives, region
from emulator.lab.standalone.script.pds_operations import ProbeOutcome
from emulator.lab.standalone.script.phrases import ip
from emulator.lab.standalone.script.requested_operations import (
    DEFAULT_KEY,
    Around,
    Message,
    messages_of,
)
from emulator.lab.standalone.session import Manners, Stop
from emulator.lab.standalone.stand_alone import StandAlone, StandAloneWork, serve
from emulator.lab.standalone.watched import Listener, WatchedEndpoint
from emulator.sim.endpoint.endpoint_fitting import REAL_TIME, frames_of, payload_for
from emulator.sim.endpoint.first_counter import first_counter
from emulator.sim.endpoint.nic.interface import NetworkInterface, interface, mac_of, own_address
from emulator.transports.one_time_keys import KEY_SUFFIX
from uet.config import FepConfig
from uet.ses.address import Address
from uet.tss.secure_domain import SecureDomain


@dataclass(frozen=True, kw_only=True)
class StandAloneFep(StandAlone):
    """One endpoint as the command line describes it; times are ns.

    ``peers`` maps addresses to MAC addresses, or to ``None`` where the kernel is to find them.
    ``values`` are fields of FepConfig, ``compat`` words of ``--compat``.  ``remote`` are fields of
    the peer's address that differ from this endpoint's own.  ``keys`` is the file that ``domains``
    come from.
    """

    peers: Mapping[str, str | None] = field(default_factory=dict)
    compat: Sequence[str] = ()
    domains: Sequence[SecureDomain] = ()
    keys: str | None = None
    remote: Mapping[str, int] = field(default_factory=dict)
    key: int = DEFAULT_KEY
    event_log: Path | None = None
    with_pdcs: bool = True


def run(requested: StandAloneFep) -> int:
    """Be that endpoint until its end; the exit status.  Raises :class:`UserError`."""
    seed = secrets.randbits(32) if requested.seed is None else requested.seed
    compatibility, like = parameters.compatibility(requested.compat)
    fitted = REAL_TIME if requested.gpu is None else requested.gpu.config
    values: dict[str, Any] = {**fitted, **like, **requested.values}
    stated = parameters.settings(requested.settings)
    values |= stated
    if "nack_retx_time" not in stated and requested.gpu is None:
        values["nack_retx_time"] = values["rto_init_time"]  # as they are in UES Table 3-28
    values["compatibility"] = compatibility
    values["domains"] = parameters.compatible(requested.domains, requested.compat)
    if len(requested.domains) == 1:
        values.setdefault("sdi", requested.domains[0].sdi)
    # What needs nothing of the kernel is judged first, with an address that stands for any.
    draft = parameters.endpoint({**values, "address": "192.0.2.1", "mac": "02:00:00:00:00:00"})
    work = StandAloneWork(
        seed,
        [offer for text in requested.receives for offer in receives(text, requested.receive_after)],
        [region(text, seed) for text in requested.regions],
        _messages(requested, draft, seed),
    )
    if requested.save is not None:
        make_folder(requested.save)

    with Stop().listening() as stop:
        if requested.netns is not None:
            enter_namespace(requested.netns)
        found = interface(requested.interface)
        found.must_work()
        config = _configured(requested, values, found, stop)
        with contextlib.ExitStack() as stack:
            return _live(requested, work, config, found, stop, stack)


def _messages(requested: StandAloneFep, draft: FepConfig, seed: int) -> list[Message]:
    if not requested.phrases and requested.script is None:
        return []
    home = Address(
        **{
            "job_id": draft.job_id,
            "pid_on_fep": draft.pid_on_fep,
            "resource_index": draft.resource_index,
            **requested.remote,
        },
        relative=draft.relative,
    )
    peers = list(requested.peers)
    around = Around(
        peer=peers[0],
        peers=peers,
        home=home,
        key=requested.key,
        seed=seed,
        delivery=draft.delivery,
    )
    return messages_of(requested.phrases, requested.script, around)


def _configured(
    requested: StandAloneFep, values: dict[str, Any], port: NetworkInterface, stop: Stop
) -> FepConfig:
    version = requested.version
    if version is None and requested.peers:
        version = ip_address(next(iter(requested.peers))).version
    address = own_address(port, requested.address and ip(requested.address, "--address"), version)
    version = ip_address(address).version
    for peer in requested.peers:
        if peer == address:
            raise UserError(f"--peer {peer} is the endpoint's own address; name another one")
        if ip_address(peer).version != version:
            raise UserError(
                f"{peer} and the endpoint's own address {address} are not of one IP version;"
                " choose the own one with --address"
            )
    if version == 6:
        parameters.must_suit_ipv6(requested.domains, requested.keys or "the key file")
    defaults = {item: FepConfig.__dataclass_fields__[item].default for item in ("native", "crc")}
    values["payload_mtu"] = payload_for(
        port.mtu,
        version=version,
        native=bool(values.get("native", defaults["native"])),
        crc=bool(values.get("crc", defaults["crc"])),
        secure=bool(requested.domains),
        requested=values.get("payload_mtu"),
    )
    neighbours = {
        peer: mac or mac_of(port, peer, lambda: stop.number is not None)
        for peer, mac in requested.peers.items()
    }
    return parameters.endpoint(
        {**values, "address": address, "mac": port.mac, "neighbours": neighbours}
    )


def _live(
    requested: StandAloneFep,
    work: StandAloneWork,
    config: FepConfig,
    found: NetworkInterface,
    stop: Stop,
    stack: contextlib.ExitStack,
) -> int:
    report = EventReport(sys.stdout, table=requested.table)

    def on_pdc(what: str, known: dict[str, object]) -> None:
        if requested.with_pdcs:
            report.event("pdc", what=what, **known)

    what = f"uetemu fep {requested.role}"
    clock = Clock.start(requested.dilation)
    endpoint = _endpoint(requested, work, config, on_pdc, clock, what, stack)
    capture = requested.capture(found, f"{what} {config.address}", stack)
    keys = None
    if requested.pcap is not None and requested.pcap.is_file() and config.domains:
        keys = f"{requested.pcap}{KEY_SUFFIX}"
        write_keys(Path(keys), config.domains)
    port = requested.open_port(found, frames_of(config), clock, stack)
    return serve(
        requested,
        work,
        endpoint,
        port,
        report,
        stop,
        found=found,
        configuration=config,
        settings=parameters.as_data(config),
        regions=[{"key": f"{one.key:#x}", "size": len(one.memory)} for one in work.regions],
        manners=Manners(
            address=config.address,
            control=partial(ProbeOutcome, endpoint),
            explain=lambda request, error: explanation(request, error, config.delivery),
        ),
        capture=capture,
        facts={
            "event_log": None if requested.event_log is None else str(requested.event_log),
            "capture_keys": keys,
        },
    )


def _endpoint(
    requested: StandAloneFep,
    work: StandAloneWork,
    config: FepConfig,
    listener: Listener,
    clock: Clock,
    what: str,
    stack: contextlib.ExitStack,
) -> WatchedEndpoint:
    """The endpoint with its regions; it writes an event log if there is to be one.

    Nothing of an earlier run is repeated.  PDC ids and first PSNs come from the operating system. A
    peer that still has that run's PDCs would take the first requests for copies, and answer them
    without carrying them out.  Packet counters begin at the time.
    """
    begins: dict[str, Any] = {"first_counter": first_counter()} if config.domains else {}
    try:
        if requested.event_log is None:
            endpoint = WatchedEndpoint(config, listener=listener, **begins)
        else:
            log = EventLog(
                requested.event_log, name=config.address, title=what, reference=clock.began
            )
            stack.callback(log.close)
            endpoint = WatchedTrace(config, listener=listener, log=log, **begins)
        for one in work.regions:
            endpoint.register(one.memory, key=one.key, writable=one.writable, readable=one.readable)
    except ValueError as error:
        raise UserError(str(error)) from None
    return endpoint
