"""A secure domain: endpoints that share keying material (UES 3.7).

What the key management of a job (SDME) gives to every endpoint, as plain data.  It loads no
cryptography, so that configurations can hold it; :mod:`uet.tss.record` puts it to work.

As JSON, a domain is an object of this class's fields; keys are hexadecimal by association number::

    {"sdi": 1, "mode": "cluster", "keys": {"0": "07e9...bed4"}, "rekey_mask": "0xff00", ...}
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from typing import Any, Literal, cast, get_args

#: How the packet key follows from the domain's key: it is that key (direct), it is derived from
#: it for every source (cluster) or for every client (server), or it was derived elsewhere (client).
Mode = Literal["direct", "cluster", "server", "client"]

KEY_SIZE = 32
IV_MASK_SIZE = 12
#: What a client is given: packet key and IV mask.
CLIENT_KEY_SIZE = KEY_SIZE + IV_MASK_SIZE
#: The packet counter's 48 bits; no value of it may be used twice under one key.
COUNTER_LIMIT = 1 << 48
EPOCH_MASK = 0xFFFF
_HALF_OF_EPOCHS = 0x8000
_NUMBERS = ("sdi", "an", "ssi", "rekey_mask", "rekey_shift", "epoch", "rx_max_epoch_lifetime",
            "failure_threshold", "latch_time")  # fmt: skip
_SWITCHES = ("reject_old_epochs", "accept_clear", "address_in_ipv6_kdf")


class SecureDomainError(ValueError):
    """A secure domain cannot be configured so; the sentence gives the reason."""


class SealError(Exception):
    """A packet must not be sent under this domain; ``reason`` is the counter's name."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class SecureDomain:
    """One secure domain as one endpoint holds it.

    ``keys`` has one or two keys by association number (AN): the domain's 32 octets, or for a
    client its provisioned 44.  ``an`` is the one that is sent with, the lowest unless given.

    ``ssi`` is this endpoint's source identifier, unique in the domain.  Where it is set, packets
    carry it in place of the source address as identity, and received ones must carry theirs.  A
    server instead names the identifiers of its ``clients`` by address, for it sends under theirs.

    ``rekey_mask`` and ``rekey_shift`` take the rekey number out of the packet counter (cluster
    mode; 0xFF00 and 8: a new packet key every 256 packets).  ``epoch`` is that of the ``an``.
    With ``reject_old_epochs``, packets of epochs more than ``rx_max_epoch_lifetime`` ago are
    dropped.  After more than ``failure_threshold`` packets within ``latch_time`` (ns) that did not
    authenticate, all are for that time (threshold 0: never; time 0: until :meth:`unlatch
    <uet.tss.record.SecureRecords.unlatch>`).  The default is far shorter than retries last, since
    anyone can forge such packets, and still bounds forgeries to 100,000 a second.

    ``accept_clear`` lets packets without security in from peers of this domain: the UEC reference
    provider sends NACKs for which it has no PDC like that.  Anyone can forge them.

    ``address_in_ipv6_kdf`` derives from the address over IPv6 even where there is an SSI, as the
    UEC reference provider does.
    """

    sdi: int
    mode: Mode
    keys: Mapping[int, bytes] = field(repr=False)
    an: int | None = None
    ssi: int | None = None
    clients: Mapping[str, int] = field(default_factory=dict)
    rekey_mask: int = 0
    rekey_shift: int = 0
    epoch: int = 0
    reject_old_epochs: bool = False
    rx_max_epoch_lifetime: int = 16
    failure_threshold: int = 1000
    latch_time: int = 10_000_000
    accept_clear: bool = False
    address_in_ipv6_kdf: bool = False

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            modes = ", ".join(get_args(Mode))
            raise SecureDomainError(f"mode is {self.mode!r}; choose one of {modes}")
        limits = {
            "sdi": (0, 2**24 - 1),
            "ssi": (0, 2**32 - 1),
            "an": (0, 1),
            "rekey_mask": (0, COUNTER_LIMIT - 1),
            "rekey_shift": (0, 47),
            "epoch": (0, EPOCH_MASK),
            "rx_max_epoch_lifetime": (0, _HALF_OF_EPOCHS - 1),
            "failure_threshold": (0, 2**32 - 1),
            "latch_time": (0, 2**48),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is None and name in ("an", "ssi"):
                continue
            if not isinstance(value, int) or not low <= value <= high:
                raise SecureDomainError(f"{name} is {value!r}; it must lie in {low}..{high}")
        self._check_keys()
        self._check_identities()
        if self.rekey_mask and self.mode != "cluster":
            raise SecureDomainError(f"rekey_mask is of cluster mode; leave it 0 in {self.mode}")
        if self.rekey_mask >> self.rekey_shift > 0xFFFF_FFFF:
            raise SecureDomainError("the rekey number exceeds 32 bits; raise rekey_shift")

    def _check_keys(self) -> None:
        if not self.keys or not set(self.keys) <= {0, 1}:
            raise SecureDomainError("keys must hold a key for AN 0, for AN 1, or for both")
        for an, key in self.keys.items():
            check_key(self.mode, an, key)
        if len(set(map(fingerprint, self.keys.values()))) < len(self.keys):
            raise SecureDomainError("both ANs have the same key; the counters would meet under it")
        if self.an is not None and self.an not in self.keys:
            raise SecureDomainError(f"an is {self.an}, but keys has none for it; add one")

    def _check_identities(self) -> None:
        if self.mode == "server" and self.ssi is not None:
            raise SecureDomainError("a server sends under its clients' SSIs; name them in clients")
        if self.clients and self.mode != "server":
            raise SecureDomainError(f"clients are of server mode; leave them out in {self.mode}")
        for address, ssi in self.clients.items():
            try:
                ip_address(address)
            except ValueError:
                raise SecureDomainError(f"clients: {address!r} is not an IP address") from None
            if not 0 <= ssi < 2**32:
                raise SecureDomainError(f"clients: SSI {ssi} does not fit into 32 bits")
        if len(set(self.clients.values())) < len(self.clients):
            raise SecureDomainError("two clients have the same SSI; it must be unique")

    @property
    def sends_with(self) -> int:
        """The AN that is sent with at first."""
        return min(self.keys) if self.an is None else self.an

    @property
    def uses_ssi(self) -> bool:
        return self.ssi is not None or bool(self.clients)

    @property
    def first_counter(self) -> int:
        """The counter of the first packet under a key: 0, but for a server with SSIs.

        There both directions have one key and, by the SSI, one space of initialisation vectors:
        the server counts in its upper half, for to use one vector twice gives the key away.
        """
        return COUNTER_LIMIT // 2 if self.mode == "server" and self.clients else 0

    @property
    def counter_limit(self) -> int:
        """The counter that no packet may have any more: of a client with SSI, half the space."""
        halved = self.mode == "client" and self.ssi is not None
        return COUNTER_LIMIT // 2 if halved else COUNTER_LIMIT

    def as_data(self) -> dict[str, Any]:
        """Return this domain as JSON has it, without fields at their defaults."""
        data: dict[str, Any] = {"sdi": self.sdi, "mode": self.mode}
        data["keys"] = {str(an): key.hex() for an, key in sorted(self.keys.items())}
        if self.clients:
            data["clients"] = dict(self.clients)
        for there in fields(self):
            value = getattr(self, there.name)
            if there.name not in (*data, "clients") and value != there.default:
                data[there.name] = value
        return data


def fingerprint(key: bytes) -> bytes:
    """Stands for the octets that encrypt: a client's are those of its key without the IV mask."""
    return hashlib.sha256(key[:KEY_SIZE]).digest()


def check_key(mode: Mode, an: int, key: bytes) -> None:
    """Raise :class:`SecureDomainError` unless ``key`` has the size that ``mode`` requires."""
    requested = CLIENT_KEY_SIZE if mode == "client" else KEY_SIZE
    if not isinstance(key, bytes) or len(key) != requested:
        size = f"{len(key)} octets" if isinstance(key, bytes) else "not octets"
        raise SecureDomainError(f"the key of AN {an} is {size}; {mode} mode takes {requested}")


def check_together(domains: Iterable[SecureDomain]) -> None:
    """Raises :class:`SecureDomainError` for domains that one endpoint may not hold together.

    Each counts its own packets, so one key in two of them would get every counter twice.
    """
    owners: dict[bytes, int] = {}
    for domain in domains:
        for key in domain.keys.values():
            owner = owners.setdefault(fingerprint(key), domain.sdi)
            if owner != domain.sdi:
                raise SecureDomainError(shared_key(owner, domain.sdi))


def shared_key(one: int, other: int) -> str:
    """The sentence for a key that is in two domains."""
    return (
        f"SDI {one} and SDI {other} have the same key, under which their counters would meet;"
        " give each a key of its own"
    )


def is_older(epoch: int, current: int, lifetime: int) -> bool:
    """Return whether ``epoch`` is more than ``lifetime`` before ``current`` (RFC 1982, 16 bits)."""
    return lifetime < (current - epoch) & EPOCH_MASK < _HALF_OF_EPOCHS


def domain_from_data(data: object) -> SecureDomain:
    """A domain from its JSON form.  Raises :class:`SecureDomainError`."""
    if not isinstance(data, dict):
        raise SecureDomainError("a secure domain is a JSON object with sdi, mode and keys")
    known = [there.name for there in fields(SecureDomain)]
    for name in data:
        if name not in known:
            raise SecureDomainError(
                f"{name!r} is no field of a secure domain; it has {', '.join(known)}"
            )
    for name in ("sdi", "mode", "keys"):
        if name not in data:
            raise SecureDomainError(f"a secure domain lacks {name!r}; add it")
    values: dict[str, Any] = {"mode": data["mode"], "keys": _keys(data["keys"])}
    for name in _NUMBERS:
        if data.get(name) is not None:
            values[name] = _number(name, data[name])
    for name in _SWITCHES:
        if name in data:
            if not isinstance(data[name], bool):
                raise SecureDomainError(f"{name} is {data[name]!r}; it is true or false")
            values[name] = data[name]
    if "clients" in data:
        if not isinstance(data["clients"], dict):
            raise SecureDomainError("clients is an object: address to SSI")
        values["clients"] = {
            address: _number(f"clients: the SSI of {address}", ssi)
            for address, ssi in data["clients"].items()
        }
    return SecureDomain(**values)


def _keys(data: object) -> dict[int, bytes]:
    if not isinstance(data, dict):
        raise SecureDomainError("keys is an object: AN (0 or 1) to the key in hexadecimal")
    keys = {}
    for an, text in data.items():
        try:
            keys[int(an)] = bytes.fromhex(cast(str, text))
        except (TypeError, ValueError):
            raise SecureDomainError(f"the key of AN {an} is not hexadecimal; check it") from None
    return keys


def _number(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(value, 0) if isinstance(value, str) else int("")
    except ValueError:
        raise SecureDomainError(f"{name} is {value!r}; it must be a whole number") from None
