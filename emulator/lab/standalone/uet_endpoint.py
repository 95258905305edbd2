"""``uetemu fep``: an endpoint of Ultra Ethernet by itself, with events of its PDCs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from emulator.errors import UserError
from emulator.lab.standalone.endpoint import EndpointRun, StandAlone, StandAloneWork
from emulator.lab.standalone.events import OutputFile
from emulator.lab.standalone.script import endpoint_parameters as parameters
from emulator.lab.standalone.script.offers import receives, region
from emulator.lab.standalone.script.requested_operations import (
    DEFAULT_KEY,
    Around,
    Message,
    begun,
    explanation,
    messages_of,
)
from emulator.lab.standalone.session import Manners
from emulator.sim.endpoint.endpoint_fitting import REAL_TIME, frames_of, payload_for
from emulator.sim.endpoint.first_counter import first_counter
from emulator.transports.one_time_keys import KEY_SUFFIX
from uet.config import FepConfig
from uet.eventlog.logging_endpoint import TracedEndpoint
from uet.eventlog.sequence import Event, JsonSequence
from uet.fep import FabricEndpoint
from uet.pds.pdc import Pdc
from uet.ses.address import Address
from uet.tss.secure_domain import SecureDomain

#: (what happened, its facts)
Listener = Callable[[str, dict[str, object]], None]


class WatchedEndpoint(FabricEndpoint):
    """A :class:`FabricEndpoint` that notifies ``listener`` of PDCs.

    ``more`` is for the next class in line: how an endpoint begins, and what a trace needs.
    """

    def __init__(self, config: FepConfig, *, listener: Listener, **more: Any) -> None:
        self._listener = listener
        #: errors that the latest PDC of an id has failed with
        self.failures: dict[int, str] = {}
        super().__init__(config, **more)

    def pdc_changed(self, pdc: Pdc) -> None:
        self._notify(pdc, pdc.state.name.lower())
        super().pdc_changed(pdc)

    def pdc_event(self, pdc: Pdc, name: str, **data: object) -> None:
        if name == "created":
            self.failures.pop(pdc.id, None)  # of an older one
            data |= {"ordered": pdc.ordered, "start_psn": pdc.start_psn}
            if pdc.sdi is not None:
                data["sdi"] = pdc.sdi
        elif name == "failed":
            self.failures[pdc.id] = str(data["error"])
        self._notify(pdc, name, **data)
        super().pdc_event(pdc, name, **data)

    def _notify(self, pdc: Pdc, name: str, **data: object) -> None:
        self._listener(
            name,
            {
                "pdc": pdc.id,
                "peer_pdc": pdc.peer_id or None,
                "peer": pdc.address,
                "initiator": pdc.initiator,
                **data,
            },
        )


_BUFFER = 1 << 16


class EventLog:
    """A new trace file.  Each event reaches it at once: a kill loses one at most.

    ``reference`` is the wall-clock time of time 0.
    """

    def __init__(self, path: Path, *, name: str, title: str, reference: str | None = None) -> None:
        self._file = OutputFile(path, buffer=_BUFFER, new=True)
        self._sequence = JsonSequence(self._write, name=name, title=title, reference=reference)

    def __call__(self, event: Event) -> None:
        """Write one event.  Raises :class:`UserError`."""
        self._sequence(event)

    def _write(self, record: str) -> None:
        self._file.write(record.encode())
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class WatchedTrace(WatchedEndpoint, TracedEndpoint):
    """A watched endpoint that is traced too."""


def write_keys(path: Path, domains: Iterable[SecureDomain]) -> None:
    """Write ``domains`` as a key file that only its owner reads, in place of an older one.

    Raises :class:`UserError`.
    """
    text = json.dumps([domain.as_data() for domain in domains], indent=2)
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; choose another place for --pcap"
        ) from None


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

    def prepare(self, seed: int) -> tuple[dict[str, Any], StandAloneWork]:
        """Return the fields of FepConfig that the user decides, and the work."""
        compatibility, like = parameters.compatibility(self.compat)
        fitted = REAL_TIME if self.gpu is None else self.gpu.config
        values: dict[str, Any] = {**fitted, **like, **self.values}
        stated = parameters.settings(self.settings)
        values |= stated
        if "nack_retx_time" not in stated and self.gpu is None:
            values["nack_retx_time"] = values["rto_init_time"]  # as they are in UES Table 3-28
        values["compatibility"] = compatibility
        values["domains"] = parameters.compatible(self.domains, self.compat)
        if len(self.domains) == 1:
            values.setdefault("sdi", self.domains[0].sdi)
        # What needs nothing of the kernel is judged first, with an address that stands for any.
        draft = parameters.endpoint({**values, "address": "192.0.2.1", "mac": "02:00:00:00:00:00"})
        work = StandAloneWork(
            seed,
            [offer for text in self.receives for offer in receives(text, self.receive_after)],
            [region(text, seed) for text in self.regions],
            self._messages(draft, seed),
        )
        return values, work

    def _messages(self, draft: FepConfig, seed: int) -> list[Message]:
        if not self.phrases and self.script is None:
            return []
        home = Address(
            **{
                "job_id": draft.job_id,
                "pid_on_fep": draft.pid_on_fep,
                "resource_index": draft.resource_index,
                **self.remote,
            },
            relative=draft.relative,
        )
        peers = list(self.peers)
        around = Around(
            peer=peers[0],
            peers=peers,
            home=home,
            key=self.key,
            seed=seed,
            delivery=draft.delivery,
        )
        return messages_of(self.phrases, self.script, around)

    def live(self, values: dict[str, Any], run: EndpointRun) -> int:
        """Make the endpoint of ``values`` in ``run``, and serve; the exit status."""
        config = self._configured(values, run)
        run.begin()
        what = f"uetemu fep {self.role}"
        endpoint = self._endpoint(config, run, what)
        run.open(frames_of(config), f"{what} {config.address}")
        keys = None
        if self.pcap is not None and self.pcap.is_file() and config.domains:
            keys = f"{self.pcap}{KEY_SUFFIX}"
            write_keys(Path(keys), config.domains)
        return run.serve(
            endpoint,
            config,
            settings=parameters.as_data(config),
            regions=[{"key": f"{one.key:#x}", "size": len(one.memory)} for one in run.work.regions],
            manners=Manners(
                address=config.address,
                control=partial(begun, endpoint),
                explain=lambda request, error: explanation(request, error, config.delivery),
            ),
            facts={
                "event_log": None if self.event_log is None else str(self.event_log),
                "capture_keys": keys,
            },
        )

    def _configured(self, values: dict[str, Any], run: EndpointRun) -> FepConfig:
        address = self.own_address(run.found, next(iter(self.peers), None))
        version = ip_address(address).version
        for peer in self.peers:
            if peer == address:
                raise UserError(f"--peer {peer} is the endpoint's own address; name another one")
            if ip_address(peer).version != version:
                raise UserError(
                    f"{peer} and the endpoint's own address {address} are not of one IP version;"
                    " choose the own one with --address"
                )
        if version == 6:
            parameters.must_suit_ipv6(self.domains, self.keys or "the key file")
        values["payload_mtu"] = payload_for(
            run.found.mtu,
            version=version,
            native=bool(values.get("native", FepConfig.native)),
            crc=bool(values.get("crc", FepConfig.crc)),
            secure=bool(self.domains),
            requested=values.get("payload_mtu"),
        )
        neighbours = {peer: mac or run.mac_of(peer) for peer, mac in self.peers.items()}
        own = {"address": address, "mac": run.found.mac, "neighbours": neighbours}
        return parameters.endpoint({**values, **own})

    def _endpoint(self, config: FepConfig, run: EndpointRun, what: str) -> WatchedEndpoint:
        """The endpoint with its regions; it writes an event log if there is to be one.

        Nothing of an earlier run is repeated.  PDC ids and first PSNs come from the operating
        system. A peer that still has that run's PDCs would take the first requests for copies, and
        answer them without carrying them out.  Packet counters begin at the time.
        """

        def on_pdc(what: str, known: dict[str, object]) -> None:
            if self.with_pdcs:
                run.report.event("pdc", what=what, **known)

        begins: dict[str, Any] = {"first_counter": first_counter()} if config.domains else {}
        try:
            if self.event_log is None:
                endpoint = WatchedEndpoint(config, listener=on_pdc, **begins)
            else:
                log = EventLog(
                    self.event_log, name=config.address, title=what, reference=run.clock.began
                )
                run.stack.callback(log.close)
                endpoint = WatchedTrace(config, listener=on_pdc, log=log, **begins)
            for one in run.work.regions:
                endpoint.register(
                    one.memory, key=one.key, writable=one.writable, readable=one.readable
                )
        except ValueError as error:
            raise UserError(str(error)) from None
        return endpoint
