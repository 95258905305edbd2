"""An endpoint that writes down what happens to it (see :mod:`uet.eventlog.schema`).

It is a subclass that looks at what goes through the endpoint's face, and at the rare things PDCs
report; an endpoint without a log runs none of this.  A traced one behaves the same, only slower.

In order: why packets leave again, the application's side, what arrives, what leaves, what PDS and
SES report.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from uet.config import FepConfig
from uet.congestion.controls.nscc import Nscc
from uet.eventlog.logged_packets import (
    Data,
    FrameReader,
    ack_data,
    credit_data,
    describe,
    nack_data,
)
from uet.eventlog.schema import NAMESPACE
from uet.eventlog.sequence import Event, milliseconds
from uet.fep import FabricEndpoint
from uet.pds.pdc import Pdc
from uet.pds.semantics import Context, Outbound
from uet.pds.window import HALF, MASK
from uet.transport import Completion, Frame, ReceiveRequest, Request

#: Causes remembered per PDC before those that are settled are looked for.
_MANY = 1_024
_REQUESTS = frozenset({"RUD_REQ", "ROD_REQ", "RUD_CC_REQ", "ROD_CC_REQ"})


class Repairs:
    """Remembers causes until the packet leaves again."""

    __slots__ = ("_causes", "_closed")

    def __init__(self) -> None:
        self._causes: dict[int, dict[int, str]] = {}
        self._closed: list[int] = []

    def report(self, pdc: Pdc, name: str, data: Mapping[str, Any]) -> None:
        """A PDC reports; called before it acts on it."""
        causes = self._causes.setdefault(pdc.id, {})
        source = pdc.source
        window = source.window
        if name == "created":
            causes.clear()
        elif name in ("rto", "loss_inferred"):
            causes[data["psn"]] = name
        elif name == "go_back":
            ahead = (data["expected"] - window.base) & MASK
            first = ahead if ahead < window.outstanding else 0
            for distance in range(first, window.outstanding):
                causes.setdefault((window.base + distance) & MASK, name)
        elif name == "renumbered":
            causes.clear()
            shift = data["start_psn"] - pdc.start_psn
            for distance in range(window.outstanding):
                causes[(window.base + shift + distance) & MASK] = name

    def refused(self, pdc: int, psn: int) -> None:
        """A NACK has come."""
        self._causes.setdefault(pdc, {}).setdefault(psn, "nack")

    def acknowledged(self, pdc: int, cack: int) -> None:
        """Nothing up to ``cack`` will be sent again."""
        causes = self._causes.get(pdc)
        if causes is not None and len(causes) > _MANY:
            for psn in [psn for psn in causes if ((cack - psn) & MASK) < HALF]:
                del causes[psn]

    def sent(self, header: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what and why, if the packet with this header was sent before."""
        again = "retx" in header.get("flags", ())
        kind = header["type"]
        if kind == "RUDI_REQ":
            return {"pkt_id": header["pkt_id"], "trigger": "rto"} if again else None
        if not (kind in _REQUESTS or (kind == "CP" and again)):
            return None
        pdc, psn = header["spdcid"], header["psn"]
        cause = self._causes.get(pdc, {}).pop(psn, "unknown" if again else None)
        return None if cause is None else {"pdc": pdc, "psn": psn, "trigger": cause}

    def close(self, pdc: int) -> None:
        """Note that ``pdc`` is closed; packets that it has sent may still arrive."""
        self._closed.append(pdc)

    def forget(self) -> None:
        """Everything sent so far has passed."""
        for pdc in self._closed:
            self._causes.pop(pdc, None)
        self._closed.clear()


Log = Callable[[Event], object]
_ACKS = frozenset({"ACK", "ACK_CC", "ACK_CCX"})
_NACKS = frozenset({"NACK", "NACK_CCX"})
#: Parameters with key material, and those that are written in another form.
_NOT_SHOWN = frozenset({"domains", "neighbours"})
_WIDE = frozenset({"tag", "ignore", "header_data", "key", "offset"})
#: JSON's numbers are exact for whoever reads them up to here (RFC 8259 section 6).
_EXACT = 1 << 53
#: What PDCs report (:meth:`uet.pds.pdc.Endpoint.pdc_event`), by names of events, with
#: those of its data that are called otherwise.
_REPORTS: dict[str, tuple[str, dict[str, str]]] = {
    "rto": ("rto_expired", {}),
    "loss_inferred": ("loss_inferred", {}),
    "go_back": ("go_back_started", {"expected": "expected_psn"}),
    "renumbered": ("pdc_renumbered", {}),
    "failed": ("pdc_failed", {}),
}


def create(
    config: FepConfig,
    *,
    seed: int | None = None,
    first_counter: int | None = None,
    log: Log | None = None,
) -> FabricEndpoint:
    """An endpoint, traced only if there is a ``log``, which is called with every event.

    :class:`uet.eventlog.sequence.JsonSequence` is one that makes a file of them.
    """
    if log is None:
        return FabricEndpoint(config, seed=seed, first_counter=first_counter)
    return TracedEndpoint(config, seed=seed, first_counter=first_counter, log=log)


class TracedEndpoint(FabricEndpoint):
    """A fabric endpoint whose every event goes to ``log``.

    Events come in the order of cause and effect, and in the order of time: those of one call of
    ``transmit`` before the packets that it returned, a packet before what it did.  What happens
    in calls that are given no time has the time of the last one that was.
    """

    def __init__(
        self,
        config: FepConfig,
        *,
        seed: int | None = None,
        first_counter: int | None = None,
        log: Log,
    ) -> None:
        self._log = log
        self._held: list[Event] | None = None
        self._time = 0
        self._repairs = Repairs()
        self._states: dict[int, str] = {}
        self._messages: dict[int, tuple[int, Outbound]] = {}  # by identity, which we keep alive
        self._messages_seen = 0
        self._waiting: set[tuple[str, str]] = set()
        self._keys: dict[int, tuple[int, int]] = {}
        self._latched: set[int] = set()
        self._rooms: dict[str, int] = {}
        self._touched: set[str] = set()  # peers whose window may have changed
        self._ended = False
        if seed is None:  # the log has it
            seed = secrets.randbits(64)
        self._parameters: Data | None = _parameters(config, seed)
        super().__init__(config, seed=seed, first_counter=first_counter)
        self._reader = FrameReader(config, self.domains)
        self._seal_errors: tuple[str, ...] = ()
        if self.domains is not None:
            from uet.tss import record

            self._seal_errors = (record.EXHAUSTED, record.NEEDS_SSI, record.UNKNOWN_CLIENT)

    def _emit(self, name: str, data: Data) -> None:
        if self._parameters is not None:
            first, self._parameters = self._parameters, None
            self._log(self._event("parameters_set", first))
        event = self._event(name, data)
        if self._held is not None:
            self._held.append(event)
        else:
            self._log(event)

    def _event(self, name: str, data: Data) -> Event:
        return {"time": milliseconds(self._time), "name": f"{NAMESPACE}:{name}", "data": data}

    @contextmanager
    def _holding(self) -> Iterator[list[Event]]:
        """Events wait meanwhile, so that what caused them can be written in front of them."""
        held: list[Event] = []
        self._held = held
        try:
            yield held
        finally:
            self._held = None

    def _release(self, held: list[Event]) -> None:
        for event in held:
            self._log(event)

    # -- the application's side ----------------------------------------------------------------

    def post(self, request: Request) -> None:
        with self._holding() as held:
            super().post(request)
        self._emit("message_posted", _request(request))
        self._release(held)

    def post_receive(self, receive: ReceiveRequest) -> None:
        with self._holding() as held:
            super().post_receive(receive)
        data = _shown(receive)
        data["length"] = receive.memory.nbytes
        if receive.tag is None:
            data.pop("ignore")
        self._emit("receive_posted", data)
        self._release(held)

    def completions(self) -> list[Completion]:
        done = super().completions()
        for completion in done:
            self._emit("message_completed", _shown(completion))
        return done

    def close(self) -> None:
        if not self._closing:
            self._emit("endpoint_state_updated", {"new": "closing"})
        super().close()

    # -- what arrives --------------------------------------------------------------------------

    def receive(self, frames: Sequence[memoryview], now: int) -> None:
        self._time = now
        if not frames:
            super().receive(frames, now)
        for frame in frames:
            # Decoded before the endpoint has changed anything, above all its keys.
            decoded = self._reader.read(frame, sent=False)
            data = describe(decoded, len(frame), sent=False)
            before = self.counts.copy()
            with self._holding() as held:
                super().receive([frame], now)
            moved = [name for name, count in self.counts.items() if count != before[name]]
            self._arrived(data, moved)
            self._release(held)
            self._sealing(moved)
        self._windows()
        self._look_at_end()

    def _arrived(self, data: Data, moved: list[str]) -> None:
        """Log the outcome of a packet by the counters that it has ``moved``."""
        received = [
            name
            for name in moved
            if name.startswith(("rx_", "tss_")) and name not in self._seal_errors
        ]
        reasons = [name for name in received if name.startswith(("rx_drop_", "tss_"))]
        if received:
            data["counters"] = received
        if reasons:
            self._emit("packet_dropped", {**data, "trigger": reasons[0]})
            self._look_at_latches()
            return
        self._emit("packet_received", data)
        self._touched.add(data["peer"])
        header = data.get("header")
        if header is None or data.get("trimmed"):
            return
        kind = header["type"]
        if kind in _ACKS and "cack_psn" in header:
            ack = ack_data(data)
            self._emit("ack_received", ack)
            self._repairs.acknowledged(ack["pdc"], ack["cack"])
        elif kind in _NACKS and "payload" in header:
            nack = nack_data(data, sent=False)
            self._emit("nack_received", nack)
            if "psn" in nack and "rx_nacks_of_settled_psn" not in received:
                self._repairs.refused(nack["pdc"], nack["psn"])
        self._credit(data, sent=False)

    def _credit(self, data: Data, *, sent: bool) -> None:
        credit = credit_data(data, sent=sent)
        if credit is not None:
            self._emit("credit_updated", credit)

    def _look_at_latches(self) -> None:
        for records in self.domains or ():
            sdi = records.domain.sdi
            if records.latched and sdi not in self._latched:
                self._latched.add(sdi)
                self._emit("domain_latched", {"sdi": sdi, "failures": records.failures})
            elif not records.latched:
                self._latched.discard(sdi)

    def _sealing(self, moved: list[str]) -> None:
        for name in moved:
            if name in self._seal_errors:
                self._emit("sealing_failed", {"trigger": name})

    # -- what leaves ---------------------------------------------------------------------------

    def transmit(self, now: int, limit: int) -> list[Frame]:
        self._time = now
        before = [self.counts[name] for name in self._seal_errors]
        out = super().transmit(now, limit)
        pairs = zip(self._seal_errors, before, strict=True)
        self._sealing([name for name, count in pairs if self.counts[name] != count])
        for header, payload in out:
            self._left(bytes(header) + bytes(payload))
        self._repairs.forget()
        self._windows()
        self._look_at_end()
        return out

    def _look_at_end(self) -> None:
        if self._closing and not self._ended and self.closed:
            self._ended = True
            self._emit("endpoint_state_updated", {"new": "closed"})

    def _left(self, frame: bytes) -> None:
        data = describe(self._reader.read(frame, sent=True), len(frame), sent=True)
        if "tss" in data:
            tss = data["tss"]
            used = tss["an"], tss["epoch"]
            if self._keys.get(tss["sdi"]) != used:
                self._keys[tss["sdi"]] = used
                self._emit("key_updated", {"sdi": tss["sdi"], "an": used[0], "epoch": used[1]})
        again = self._repairs.sent(data["header"]) if "header" in data else None
        if again is not None and again["trigger"] == "rto" and "pkt_id" in again:
            # Nothing but its timer sends a RUDI request again, which is no PDC's to report.
            self._emit("rto_expired", {"pkt_id": again["pkt_id"]})
        self._emit("packet_sent", data)
        self._touched.add(data["peer"])
        if again is not None:
            self._emit("packet_retransmitted", {"peer": data["peer"], **again})
        if "header" not in data:
            return
        if data["header"]["type"] in _NACKS:
            self._emit("nack_sent", nack_data(data, sent=True))
        self._credit(data, sent=True)

    def _windows(self) -> None:
        """Log the windows of congestion contexts that have changed."""
        for address in sorted(self._touched):
            peer = self.peers.get(ip_address(address).packed)
            if peer is None:
                continue
            room, window = peer.congestion.room(), peer.congestion.window_octets
            if self._rooms.get(address, window) != room:
                self._rooms[address] = room
                data: dict[str, object] = {"peer": address, "room": room, "window": window}
                steered = peer.congestion.window
                if isinstance(steered, Nscc):
                    data["base_rtt"] = steered.base_rtt / 1e6
                    data["queueing_delay"] = round(steered.average) / 1e6
                self._emit("window_updated", data)
        self._touched.clear()

    # -- what PDS and SES report ---------------------------------------------------------------

    def carry(self, message: Outbound, peer: str, delivery: str) -> Context | None:
        pdc = super().carry(message, peer, delivery)
        if pdc is None:
            if (peer, delivery) not in self._waiting:
                self._waiting.add((peer, delivery))
                waiting = {"peer": peer, "delivery": delivery, "trigger": "no_pdc"}
                self._emit("message_waiting", waiting)
        else:
            self._waiting.discard((peer, delivery))
            self._emit("message_started", {**self._message(pdc, message), "delivery": delivery})
        return pdc

    def message_end(self, pdc: Context, message: Outbound, now: int) -> None:
        data = {**self._message(pdc, message), "acknowledged": message.acknowledged}
        if message.error is not None:
            data["error"] = message.error
        self._messages.pop(id(message), None)
        self._emit("message_ended", data)
        super().message_end(pdc, message, now)

    def message_unsent(self, message: Outbound) -> None:
        number = self._number(message)
        self._messages.pop(id(message), None)
        self._emit("message_unsent", {"message": number, "message_id": message.id})
        super().message_unsent(message)

    def _number(self, message: Outbound) -> int:
        known = self._messages.get(id(message))
        if known is None:
            self._messages_seen += 1
            known = self._messages[id(message)] = (self._messages_seen, message)
        return known[0]

    def _message(self, pdc: Context, message: Outbound) -> Data:
        return {
            "message": self._number(message),
            "message_id": message.id,
            "packets": message.packets,
            "peer": pdc.address,
            "pdc": pdc.id,
        }

    def pdc_changed(self, pdc: Pdc) -> None:
        self._state(pdc)
        super().pdc_changed(pdc)

    def _state(self, pdc: Pdc) -> None:
        new = pdc.state.name.lower()
        data: Data = {
            "pdc": pdc.id,
            "new": new,
            "peer": pdc.address,
            "start_psn": pdc.start_psn,
            "role": "initiator" if pdc.initiator else "target",
            "delivery": "rod" if pdc.ordered else "rud",
        }
        old = self._states.get(pdc.id)
        if old is not None:
            data["old"] = old
        if pdc.peer_id:
            data["peer_pdc"] = pdc.peer_id
        if pdc.sdi is not None:
            data["sdi"] = pdc.sdi
        self._states[pdc.id] = new
        if new == "closed":
            del self._states[pdc.id]
            self._repairs.close(pdc.id)
        self._emit("pdc_state_updated", data)

    def pdc_event(self, pdc: Pdc, name: str, **data: object) -> None:
        self._repairs.report(pdc, name, data)
        self._touched.add(pdc.address)
        if name == "created":
            self._state(pdc)
        elif name in _REPORTS:
            event, names = _REPORTS[name]
            renamed = {names.get(key, key): value for key, value in data.items()}
            self._emit(event, {"pdc": pdc.id, **renamed})
        else:
            self._emit("pdc_event", {"pdc": pdc.id, "event": name, "details": data})
        super().pdc_event(pdc, name, **data)


def _shown(record: Any) -> Data:
    """Return the plain fields of a request, receive or completion that differ from defaults."""
    if isinstance(record, Completion):
        values = record._asdict()
    else:
        values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    data: Data = {}
    for name, value in values.items():
        if isinstance(value, str | int) and value is not False:
            data[name] = f"0x{value:016x}" if name in _WIDE else value
    return data


def _exact(value: object) -> object:
    """``value``, as a string if it is a number that readers of JSON may round."""
    return hex(value) if isinstance(value, int) and abs(value) > _EXACT else value


def _request(request: Request) -> Data:
    data = {"kind": request.kind, **_shown(request)}
    for octets in ("payload", "memory", "result"):
        part = getattr(request, octets, None)
        if part is not None:
            data["length"] = part.nbytes
    return data


def _parameters(config: FepConfig, seed: int) -> Data:
    """All parameters but the keys; of secure domains, who they are."""
    parameters: Data = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in _NOT_SHOWN:
            parameters[field.name] = list(value) if isinstance(value, tuple) else _exact(value)
    parameters["compatibility"] = dataclasses.asdict(config.compatibility)
    parameters["neighbours"] = sorted(config.neighbours)
    parameters["domains"] = [{"sdi": each.sdi, "mode": each.mode} for each in config.domains]
    # A seed is of any size, and a JSON number is exact to 2^53 only.
    return {"endpoint_seed": str(seed), "parameters": parameters}
