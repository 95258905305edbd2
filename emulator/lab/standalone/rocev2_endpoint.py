"""``uetemu hca``: one end of a reliable connection of RoCEv2 by itself.

Its operations have the words of ``uetemu fep``.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any, Final

from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.errors import UserError
from emulator.lab.standalone.cards import Card, CardExchange, exchange
from emulator.lab.standalone.endpoint import EndpointRun, StandAlone, StandAloneWork
from emulator.lab.standalone.script import endpoint_parameters as parameters
from emulator.lab.standalone.script.offers import receives, region
from emulator.lab.standalone.script.phrases import number
from emulator.lab.standalone.script.requested_operations import Around, Message, messages_of
from emulator.lab.standalone.session import Manners
from emulator.rocev2.config import HcaConfig
from emulator.rocev2.connections import Connection
from emulator.rocev2.hca import HostChannelAdapter
from emulator.rocev2.memory import ADDRESS_BITS, KEY_BITS
from emulator.rocev2.wire import codes, headers
from topologies.advice import question
from uet.ses.address import Address
from uet.transport import AtomicRequest, ReadRequest, Request, SendRequest, WriteRequest
from uet.wire import headers as below
from uet.wire.codes import AtomicOpcode, Datatype

_COMMON = ("size", "count", "error", "after")
_RMA = ("key", "offset", "step")
_DATA = ("pattern", "index", "header_data")
#: The fields of each operation.
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "write": (*_COMMON, *_RMA, *_DATA),
    "read": (*_COMMON, *_RMA, "expect", "index"),
    "send": (*_COMMON, *_DATA),
    "fetch": (*_COMMON, *_RMA, "operation", "operand", "compare", "expect"),
}
#: The two atomics of IBA 9.4.5, by their names among those of UET.
_ATOMICS: Final = {
    AtomicOpcode.SUM: codes.BthOperation.FETCH_ADD,
    AtomicOpcode.CSWAP: codes.BthOperation.COMPARE_SWAP,
}
#: How work can end, as verbs call it.
_ERRORS: Final = (
    "LOC_LEN_ERR", "WR_FLUSH_ERR", "BAD_RESP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR",
    "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "REFUSED_HERE",
)  # fmt: skip
#: Stands for the peer and its region, which are not known before cards are exchanged.
ANY_PEER = "0.0.0.0"
THE_REGION = 1 << KEY_BITS


def error_name(text: str, what: str) -> str:
    """The error of that name.  Raises :class:`UserError`."""
    name = text.strip().upper().removeprefix("IBV_WC_")
    if name in _ERRORS:
        return name
    listed = f"choose one of {', '.join(_ERRORS)}"
    hint = question(name, _ERRORS, otherwise=listed, likeness=0.5)
    raise UserError(f"{what} is {text!r}, which no operation ends with; {hint}")


def must_be_possible(message: Message) -> None:
    """Raise :class:`UserError` for what RoCEv2 does not have, whoever the peer is."""
    request, what = message.request, f"operation {message.number} ({message.name})"
    if isinstance(request, AtomicRequest) and request.operation not in _ATOMICS:
        name = AtomicOpcode(request.operation).name.lower()
        raise UserError(f"{what}: RoCEv2 has no {name}; its atomics are fetch:sum and cswap")
    if isinstance(request, WriteRequest | SendRequest) and (request.header_data or 0) >> 32:
        raise UserError(
            f"{what}: header_data is {request.header_data:#x}; an immediate has 32 bits"
        )


def at_peer(message: Message, peer: Card) -> None:
    """Aim it at the peer's queue pair and, unless it names another one, region.

    Raises :class:`UserError` if there is no such region, or no such address.
    """
    aim: dict[str, object] = {"peer": peer.address, "destination": None, "delivery": None}
    request: Request = message.request
    if isinstance(request, WriteRequest | ReadRequest | AtomicRequest):
        key, offset = request.key, request.offset
        if key == THE_REGION:
            if peer.rkey is None:
                raise UserError(
                    f"operation {message.number} ({message.name}) is for the peer's memory, and its"
                    " card names none; let it register a region, or say --peer-rkey"
                )
            key, offset = peer.rkey, peer.vaddr + offset
        if key >> KEY_BITS or offset >> ADDRESS_BITS:
            raise UserError(
                f"operation {message.number} ({message.name}): R_Keys have {KEY_BITS} bits and"
                f" addresses {ADDRESS_BITS}, and it has {key:#x} and {offset:#x}"
            )
        aim |= {"key": key, "offset": offset}
        message.stated |= {"key": f"{key:#x}", "offset": offset}
    if isinstance(request, AtomicRequest):
        aim |= {"operation": int(_ATOMICS[AtomicOpcode(request.operation)])}
        aim |= {"datatype": int(Datatype.UINT64)}
    message.stated["peer"] = peer.address
    message.request = replace(request, **aim)  # type: ignore[arg-type]


_AROUND = below.UDP_HEADER.size + headers.BTH.size + codes.ICRC_SIZE
_EXTENSIONS = headers.RETH.size + headers.IMM_DT.size


def path_mtu_for(mtu: int, *, version: int, requested: int | None) -> int:
    """Return the requested path MTU, or the largest that fits an interface's MTU.

    Raises :class:`UserError` where packets would not fit.
    """
    around = (below.IPV4 if version == 4 else below.IPV6).size + _AROUND + _EXTENSIONS
    if requested is not None:
        if requested not in codes.PATH_MTUS:
            listed = ", ".join(map(str, codes.PATH_MTUS))
            raise UserError(f"mtu is {requested}; InfiniBand knows {listed}")
        if requested + around > mtu:
            raise UserError(
                f"a path MTU of {requested} octets needs an interface MTU of"
                f" {requested + around}, and it has {mtu}; raise that, or choose a smaller one"
            )
        return requested
    fitting = [size for size in codes.PATH_MTUS if size + around <= mtu]
    if not fitting:
        raise UserError(
            f"the interface's MTU of {mtu} octets is too small for RoCEv2; raise it to"
            f" {codes.PATH_MTUS[0] + around}"
        )
    return max(fitting)


#: The R_Key of a region that is offered as "default".
DEFAULT_KEY = 0x1234_5678
_FRAMES = TransportFrames(udp_ports=(codes.UDP_PORT,), ip_protocols=())
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

    def prepare(self, seed: int) -> tuple[dict[str, Any], StandAloneWork]:
        """Return the fields of HcaConfig that the user decides, and the work."""
        values: dict[str, Any] = {**(self.gpu.config if self.gpu else {}), **self.values}
        values |= parameters.settings(self.settings, HcaConfig, parameters.ROCEV2_ELSEWHERE)
        # What needs nothing of the kernel is judged first, with an address that stands for any.
        draft = parameters.configured(
            HcaConfig, {**values, "address": "192.0.2.1", "mac": "02:00:00:00:00:00"}
        )
        messages = self._messages(seed)
        offers = [
            offer
            for text in self.receives
            for offer in receives(text, self.receive_after, matching=())
        ]
        regions = [
            region(text, seed, default_key=DEFAULT_KEY, more=("address",)) for text in self.regions
        ]
        work = StandAloneWork(seed, offers, regions, messages)
        _hca(draft, work)  # what is wrong with regions is reported now
        return values, work

    def _messages(self, seed: int) -> list[Message]:
        if not self.phrases and self.script is None:
            return []
        around = Around(
            peer=ANY_PEER,
            peers=[ANY_PEER],
            home=Address(),
            key=THE_REGION,
            seed=seed,
            fields=FIELDS,
            error=error_name,
            longest=codes.MAX_MESSAGE,
        )
        messages = messages_of(self.phrases, self.script, around)
        for message in messages:
            must_be_possible(message)
        return messages

    def live(self, values: dict[str, Any], run: EndpointRun) -> int:
        """Make the endpoint of ``values`` in ``run``, and serve; the exit status."""
        own = self._own_card(run, values.get("mtu"))
        run.begin()
        # Before cards are exchanged: what the peer sends at once then waits in the ring.
        run.open(_FRAMES, f"uetemu hca {self.role} {own.address}")
        run.report.event("card", whose="own", **own.as_data())
        peer = self.peer
        if isinstance(peer, CardExchange):
            time_limit = self.limits.timeout or self.limits.duration
            peer = exchange(own, peer, run.stop, None if time_limit is None else time_limit / 1e9)
        run.report.event("card", whose="peer", **peer.as_data())
        config = self._configured(values, own, peer, run)
        for message in run.work.messages:
            at_peer(message, peer)
        hca = _hca(config, run.work)

        def at_end() -> dict[str, object]:
            qp = hca.queue_pair(own.qpn)
            assert qp is not None
            return {"qp": {"qpn": own.qpn, "peer_qpn": peer.qpn, "state": qp.state.value}}

        settings = parameters.as_data(config)
        return run.serve(
            hca,
            config,
            # without what the cards have exchanged
            settings={name: value for name, value in settings.items() if name != "connections"},
            regions=[
                {"key": f"{one.key:#x}", "address": one.address, "size": len(one.memory)}
                for one in run.work.regions
            ],
            manners=Manners(),
            facts={"path_mtu": config.mtu},
            at_end=at_end,
        )

    def _own_card(self, run: EndpointRun, mtu: int | None) -> Card:
        known = self.peer.address if isinstance(self.peer, Card) else None
        address = self.own_address(run.found, known)
        qpn, psn = self.qpn, self.psn
        if qpn is None:
            qpn = _FIRST_QPN + secrets.randbelow(codes.QPN_MASK - _FIRST_QPN)
        if psn is None:
            psn = secrets.randbits(24)
        first = run.work.regions[0] if run.work.regions else None
        return Card(
            address=address,
            qpn=number(qpn, "--qpn", low=codes.GSI_QPN + 1, high=codes.QPN_MASK - 1),
            psn=number(psn, "--psn", high=codes.PSN_MASK),
            mtu=path_mtu_for(run.found.mtu, version=ip_address(address).version, requested=mtu),
            rkey=None if first is None else first.key,
            vaddr=0 if first is None else first.address,
            length=0 if first is None else len(first.memory),
        )

    def _configured(
        self, values: dict[str, Any], own: Card, peer: Card, run: EndpointRun
    ) -> HcaConfig:
        if ip_address(peer.address).version != ip_address(own.address).version:
            raise UserError(
                f"the peer's address {peer.address} and the own one {own.address} are not of one IP"
                " version; choose the own one with -4, -6 or --address"
            )
        mac = self.peer_mac or run.mac_of(peer.address)
        connection = Connection(
            local_qpn=own.qpn, remote_qpn=peer.qpn, first_psn=own.psn, expected_psn=peer.psn
        )
        decided = {
            "mtu": min(own.mtu, peer.mtu),
            "address": own.address,
            "mac": run.found.mac,
            "neighbours": {peer.address: mac},
            "connections": {peer.address: (connection,)},
        }
        return parameters.configured(HcaConfig, {**values, **decided})


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
