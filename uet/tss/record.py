"""Seals and opens packets of a secure domain: AES-256-GCM behind the TSS header (UES 3.7).

A secured packet is TSS header, ciphertext (all of PDS, SES and payload) and a tag of 16 octets.
Authenticated beside them is the *prefix*: the octets of the frame from the source IP address
through the entropy header, or through the UDP header with its checksum as zero.  What routers
change (lengths, DSCP, ECN, TTL) stands in front of that.

There is no replay protection here: a replayed packet opens, and PDS recognises its PSN.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Final

from cryptography.exceptions import InvalidTag

from uet.counts import Counts
from uet.tss.keys import KeyIndex, KeyRing, PacketKey
from uet.tss.secure_domain import (
    EPOCH_MASK,
    SealError,
    SecureDomain,
    SecureDomainError,
    check_key,
    fingerprint,
    is_older,
    shared_key,
)
from uet.wire import headers
from uet.wire.codes import ICV_SIZE

# Why a packet was not opened.
TRUNCATED: Final = "tss_truncated"
UNKNOWN_SDI: Final = "tss_unknown_sdi"
LATCHED: Final = "tss_latched"
NO_KEY: Final = "tss_no_key"
MISSING_SSI: Final = "tss_missing_ssi"
OLD_EPOCH: Final = "tss_old_epoch"
BAD_TAG: Final = "tss_bad_tag"
#: A peer has this endpoint's SSI, so that their vectors meet, or what was sent comes back.
OWN_SSI: Final = "tss_own_ssi"
LATCHES: Final = "tss_latches"  # how often a domain has been latched
# Why a packet was not sealed.
EXHAUSTED: Final = "tss_counter_exhausted"
NEEDS_SSI: Final = "tss_needs_ssi"
UNKNOWN_CLIENT: Final = "tss_unknown_client"
#: For the endpoint that refuses a packet without security from a peer of a secure domain.
CLEAR_REFUSED: Final = "tss_clear_refused"

_log = logging.getLogger(__name__)
_TSS, _TSS_SSI = headers.TSS, headers.TSS_SSI
_SP = _TSS.mask("sp") >> 24
_AN = _TSS.mask("an") >> 24
_SSI_SIZE = _TSS_SSI.size - _TSS.size
_SSI_AT = _TSS_SSI.field("ssi").offset // 8
_SSI_END = _SSI_AT + _SSI_SIZE
_EPOCH_AT = _TSS.shift("epoch")
_COUNTER_MASK = _TSS.mask("counter")
_LEAST = _TSS.size + ICV_SIZE
#: Octets that show which request a trimmed packet was: the longest PDS header of one.
PEEKED: Final = headers.RUD_REQ.size + headers.REQ_CC_STATE.size
_TSC_BITS = 64
_IPV4_SIZE, _IPV6_SIZE = 4, 16
#: Source and destination, and the UDP header: no prefix of IPv4 that we send is longer.
_LONGEST_IPV4_PREFIX = 2 * _IPV4_SIZE + headers.UDP_HEADER.size
_NO_CHECKSUM = bytes(2)

#: What sealing needs of one pair of addresses: SSI (or None), identity, IV word in place.
_Way = tuple["int | None", bytes, int]
_WayIn = tuple[PacketKey, bytes, int, KeyRing, "KeyIndex | None"]


def covered(
    frame: bytes | memoryview, source_address_at: int, tss_at: int, *, udp: bool = True
) -> bytes:
    """The prefix of a received frame, with a UDP checksum taken as zero."""
    if udp:
        return bytes(frame[source_address_at : tss_at - 2]) + _NO_CHECKSUM
    return bytes(frame[source_address_at:tss_at])


def sdi_of(packet: bytes | memoryview) -> int:
    """The secure domain identifier of a packet that begins with a TSS header."""
    return packet[1] << 16 | packet[2] << 8 | packet[3]


class SecureRecords:
    """The sealing and opening side of one secure domain at one endpoint.

    Every refusal is counted in ``counts`` under its reason, which may be shared among domains. The
    counters of packets live here, and begin ``first_counter`` after the domain's first one. Whoever
    makes this object anew, as after a restart, must bring keys that nothing was sent with. Else a
    ``first_counter`` beyond every counter that was is needed (RFC 5116 section 3.1).  ``owners``
    maps fingerprints of keys to the SDI that has or had them, for all domains of one endpoint.
    """

    def __init__(
        self,
        domain: SecureDomain,
        counts: Counts | None = None,
        *,
        first_counter: int = 0,
        owners: dict[bytes, int] | None = None,
    ) -> None:
        room = domain.counter_limit - domain.first_counter
        if not 0 <= first_counter < room:
            raise SecureDomainError(
                f"first_counter is {first_counter}; it must lie in 0..{room - 1}"
            )
        self.domain = domain
        self.counts = Counts() if counts is None else counts
        #: octets that sealing adds to a packet
        self.overhead = (_TSS_SSI if domain.uses_ssi else _TSS).size + ICV_SIZE
        #: packets that did not authenticate in the present ``latch_time``
        self.failures = 0
        #: too many did not: whatever is received is dropped, sending goes on
        self.latched = False
        self._failing_since = 0  # ns: when the latch was set, or the first failure was counted
        self._first_counter = first_counter
        # Where packets under the own SSI are no peer's: a client's server sends under the client's.
        self._own_ssi = b""
        if domain.ssi is not None and domain.mode in ("direct", "cluster"):
            self._own_ssi = domain.ssi.to_bytes(_SSI_SIZE, "big")
        self._serves = domain.mode == "server"
        self._rings: list[KeyRing | None] = [None, None]
        self._owners: dict[bytes, int] = {} if owners is None else owners
        self._clients = {ip_address(a).packed: ssi for a, ssi in domain.clients.items()}
        self._ways: dict[bytes, _Way] = {}
        for an, key in domain.keys.items():
            self._check_unused(an, key)
        for an, key in domain.keys.items():
            self._install(an, key, domain.epoch if an == domain.sends_with else 0)
        self._sending = self.ring(domain.sends_with)

    # Keys and epochs, as key management directs them

    @property
    def an(self) -> int:
        """The association number that is sent with."""
        return self._sending.an

    @property
    def live(self) -> list[int]:
        """The association numbers that are accepted."""
        return [ring.an for ring in self._rings if ring]

    def position(self, an: int) -> tuple[int, int]:
        """Epoch and counter of the next packet sent under ``an``."""
        ring = self.ring(an)
        return ring.epoch, ring.counter

    def set_key(self, an: int, key: bytes, *, epoch: int = 0) -> None:
        """Give the idle AN a new key, under which epoch and counter begin anew.

        The counter begins where that of every key here began.
        Make before break: packets under it are accepted from now on, sent from :meth:`rotate` on.
        Raises :class:`SecureDomainError`, also for a key that was here before: its counters would
        be used twice.
        """
        if an not in (0, 1):
            raise SecureDomainError(f"an is {an}; it must lie in 0..1")
        if an == self._sending.an:
            raise SecureDomainError(f"AN {an} is being sent with; rotate to the other one first")
        if not 0 <= epoch <= EPOCH_MASK:
            raise SecureDomainError(f"epoch is {epoch}; it must lie in 0..{EPOCH_MASK}")
        check_key(self.domain.mode, an, key)
        self._install(an, key, epoch)

    def rotate(self, an: int) -> None:
        """Send with ``an`` from now on; the other one stays accepted until it is retired.

        Epoch and counter belong to the key: both are at their start under a new one, and go on
        where they stood under one that was sent with before.
        """
        self._sending = self.ring(an)

    def retire(self, an: int) -> None:
        """Forget the idle AN's key: its packets are refused from now on."""
        if self.ring(an) is self._sending:
            raise SecureDomainError(f"AN {an} is being sent with; rotate to the other one first")
        self._rings[an] = None

    def set_epoch(self, epoch: int, an: int | None = None) -> None:
        """Advance the epoch of ``an``, of the one that is sent with unless given.

        The counter goes on.  Raises :class:`SecureDomainError` for an epoch before the present one.
        """
        ring = self._sending if an is None else self.ring(an)
        if self.domain.mode == "client":
            raise SecureDomainError("a client's key is of one epoch; set a new key with its epoch")
        if not 0 <= epoch <= EPOCH_MASK or is_older(epoch, ring.epoch, 0):
            raise SecureDomainError(f"epoch {epoch} is no epoch after {ring.epoch}")
        ring.epoch = epoch

    def unlatch(self) -> None:
        """Accept packets again at once after too many that did not authenticate."""
        self.failures = 0
        self.latched = False

    def _failed(self, now: int) -> None:
        """Another packet did not authenticate."""
        if not self.failures or 0 < self.domain.latch_time <= now - self._failing_since:
            self.failures, self._failing_since = 0, now
        self.failures += 1
        if 0 < self.domain.failure_threshold < self.failures:
            self.latched, self._failing_since = True, now
            self.counts[LATCHES] += 1

    def _still_latched(self, now: int) -> bool:
        if 0 < self.domain.latch_time <= now - self._failing_since:
            self.unlatch()
        return self.latched

    def ring(self, an: int) -> KeyRing:
        """Return what is kept of the key of ``an``; SecureDomainError if it has none."""
        ring = self._rings[an] if an in (0, 1) else None
        if ring is None:
            raise SecureDomainError(f"SDI {self.domain.sdi} has no key for AN {an}; set one")
        return ring

    def _check_unused(self, an: int, key: bytes) -> None:
        owner = self._owners.get(fingerprint(key))
        if owner == self.domain.sdi:
            raise SecureDomainError(f"the key for AN {an} was in use before; take a fresh one")
        if owner is not None:
            raise SecureDomainError(shared_key(owner, self.domain.sdi))

    def _install(self, an: int, key: bytes, epoch: int) -> None:
        self._check_unused(an, key)
        self._owners[fingerprint(key)] = self.domain.sdi
        self._rings[an] = KeyRing(self.domain, an, key, epoch, self._first_counter)

    # Sending

    def seal(
        self, prefix: bytes, header: bytes, payload: bytes | memoryview = b""
    ) -> tuple[bytes, bytes]:
        """TSS header, and ciphertext with tag, of the UET headers ``header`` and ``payload``.

        ``prefix`` is that of the frame as it will be sent (no IP options), the UDP length with
        :attr:`overhead` in it.  Every call takes a new counter, so seal a retransmission again.
        Raises :class:`SealError`, which is counted.
        """
        if len(prefix) <= _LONGEST_IPV4_PREFIX:
            addresses = prefix[: 2 * _IPV4_SIZE]
        else:
            addresses = prefix[: 2 * _IPV6_SIZE]
        way = self._ways.get(addresses)
        if way is None:
            way = self._find_way(addresses)
        ssi, identity, iv_word = way
        ring = self._sending
        counter = ring.counter
        domain = self.domain
        if counter >= domain.counter_limit:
            self.counts[EXHAUSTED] += 1
            raise SealError(EXHAUSTED, f"SDI {domain.sdi}: AN {ring.an} needs a new key")
        ring.counter = counter + 1
        epoch = ring.epoch
        key = ring.fixed
        if key is None:
            index = (epoch, (counter & domain.rekey_mask) >> domain.rekey_shift, identity)
            key = ring.packet_keys.get(index)
            if key is None:
                key = ring.derive(index)
                ring.keep(index, key)
        tsc = epoch << _EPOCH_AT | counter
        if ssi is None:
            tss = _TSS.pack(ring.first_word, tsc)
        else:
            tss = _TSS_SSI.pack(ring.first_word, ssi, tsc)
        iv = ((iv_word | tsc) ^ key.iv_mask).to_bytes(12, "big")
        return tss, key.encrypt(iv, header + payload, prefix + tss)

    def _find_way(self, addresses: bytes) -> _Way:
        domain = self.domain
        size = len(addresses) // 2
        source, destination = addresses[:size], addresses[size:]
        ssi, named = domain.ssi, source
        if domain.mode == "server":
            ssi, named = self._clients.get(destination), destination
            if ssi is None and self._clients:
                self.counts[UNKNOWN_CLIENT] += 1
                raise SealError(
                    UNKNOWN_CLIENT, f"SDI {domain.sdi}: clients has no SSI for this destination"
                )
        if ssi is None and size == _IPV6_SIZE and domain.mode != "cluster":
            # The vectors of all sources would be the same.
            self.counts[NEEDS_SSI] += 1
            raise SealError(
                NEEDS_SSI, f"SDI {domain.sdi}: {domain.mode} mode over IPv6 needs an SSI"
            )
        way = ssi, self._identity(ssi, named), self._iv_word(ssi, source)
        self._ways[addresses] = way
        return way

    def _identity(self, ssi: int | None, address: bytes) -> bytes:
        """Return what packet keys are derived from."""
        if ssi is None or (len(address) == _IPV6_SIZE and self.domain.address_in_ipv6_kdf):
            return address
        return ssi.to_bytes(_SSI_SIZE, "big")

    def _iv_word(self, ssi: int | None, source: bytes) -> int:
        """Return what the initialisation vector begins with, above the TSC."""
        if ssi is None:
            ssi = int.from_bytes(source, "big") if len(source) == _IPV4_SIZE else self.domain.sdi
        return ssi << _TSC_BITS

    # Receiving

    def open(
        self,
        prefix: bytes,
        packet: bytes | memoryview,
        address_size: int = _IPV4_SIZE,
        now: int = 0,
    ) -> bytes | str:
        """The plaintext of a packet, or the reason why there is none, which is counted.

        ``packet`` goes from the TSS header through the tag; for ``prefix`` see :func:`covered`.
        ``address_size``: octets of an IP address in it, 4 or 16.  ``now`` (ns) is for the latch.
        Never raises.
        """
        if self.latched and self._still_latched(now):
            return self._refuse(LATCHED)
        if self._own_ssi and packet[_SSI_AT:_SSI_END] == self._own_ssi and packet[0] & _SP:
            return self._refuse_own_ssi(prefix, address_size)
        if self._serves and self._is_stranger(prefix, packet, address_size):
            return self._refuse(UNKNOWN_CLIENT)
        found = self.read(prefix, packet, address_size)
        if isinstance(found, str):
            if found == BAD_TAG:
                self._failed(now)
            return self._refuse(found)
        return found

    def read(
        self,
        prefix: bytes,
        packet: bytes | memoryview,
        address_size: int = _IPV4_SIZE,
        *,
        by_server: bool = False,
    ) -> bytes | str:
        """The plaintext of a packet for who only looks: nothing is counted, no latch matters.

        Parameters and reasons are those of :meth:`open`.  ``by_server`` reads what a server has
        sent with the server's own domain.
        """
        with_ssi = len(packet) > 0 and packet[0] & _SP
        if len(packet) < (_LEAST + _SSI_SIZE if with_ssi else _LEAST):
            return TRUNCATED
        found = self._way_in(prefix, packet, address_size, by_server)
        if isinstance(found, str):
            return found
        key, iv, size, ring, fresh = found
        try:
            plaintext = key.decrypt(iv, bytes(packet[size:]), prefix + bytes(packet[:size]))
        except InvalidTag:
            return BAD_TAG
        if fresh is not None:
            ring.keep(fresh, key)
        return plaintext

    def peek(
        self, prefix: bytes, packet: bytes | memoryview, address_size: int = _IPV4_SIZE
    ) -> bytes | str:
        """The first :data:`PEEKED` octets of a packet that was trimmed, or as many as it has.

        Nothing vouches for them: a trimmed packet has lost its tag, and whoever changes a bit of
        the ciphertext changes that bit of the plaintext.  Refusals are as those of :meth:`open`,
        and counted; no latch is set.
        """
        with_ssi = len(packet) > 0 and packet[0] & _SP
        found: _WayIn | str
        if len(packet) <= (_TSS_SSI if with_ssi else _TSS).size:
            found = TRUNCATED
        elif self.latched:
            found = LATCHED
        elif self._own_ssi and with_ssi and packet[_SSI_AT:_SSI_END] == self._own_ssi:
            found = OWN_SSI
        elif self._is_stranger(prefix, packet, address_size):
            found = UNKNOWN_CLIENT
        else:
            found = self._way_in(prefix, packet, address_size, by_server=False)
        if isinstance(found, str):
            return self._refuse(found)
        key, iv, size, _, _ = found
        return key.first_octets(iv, bytes(packet[size : size + PEEKED]))

    def _is_stranger(self, prefix: bytes, packet: bytes | memoryview, address_size: int) -> bool:
        """Server: whether a packet comes under the SSI of another client than its sender.

        That one's key must not open it.
        """
        if not self._serves or len(packet) < _SSI_END or not packet[0] & _SP:
            return False
        ssi = int.from_bytes(packet[_SSI_AT:_SSI_END], "big")
        return ssi != self._clients.get(prefix[:address_size])

    def _way_in(
        self, prefix: bytes, packet: bytes | memoryview, address_size: int, by_server: bool
    ) -> _WayIn | str:
        """Key, vector and octets of the TSS header; the ring, and where it may keep a fresh key."""
        domain = self.domain
        ring = self._rings[packet[0] & _AN]
        if ring is None:
            return NO_KEY
        if packet[0] & _SP:
            _, ssi, tsc = _TSS_SSI.unpack_from(packet)
            size = _TSS_SSI.size
        elif domain.uses_ssi:
            return MISSING_SSI
        else:
            _, tsc = _TSS.unpack_from(packet)
            ssi, size = None, _TSS.size
        epoch = tsc >> _EPOCH_AT
        if domain.reject_old_epochs and is_older(epoch, ring.epoch, domain.rx_max_epoch_lifetime):
            return OLD_EPOCH
        source = prefix[:address_size]
        key, fresh = ring.fixed, None
        if key is None:
            named = prefix[address_size : 2 * address_size] if by_server else source
            rekey = (tsc & _COUNTER_MASK & domain.rekey_mask) >> domain.rekey_shift
            index = (epoch, rekey, self._identity(ssi, named))
            key = ring.packet_keys.get(index)
            if key is None:
                key, fresh = ring.derive(index), index
        iv = ((self._iv_word(ssi, source) | tsc) ^ key.iv_mask).to_bytes(12, "big")
        return key, iv, size, ring, fresh

    def _refuse_own_ssi(self, prefix: bytes, address_size: int) -> str:
        """Refuse what comes under the own SSI; the first time, say so: nothing else would."""
        if not self.counts[OWN_SSI]:
            _log.warning(
                "%s sends under SSI %s, which is this endpoint's own: what comes from there is"
                " dropped; give each endpoint of secure domain %s an SSI of its own",
                ip_address(bytes(prefix[:address_size])),
                self.domain.ssi,
                self.domain.sdi,
            )
        return self._refuse(OWN_SSI)

    def _refuse(self, reason: str) -> str:
        self.counts[reason] += 1
        return reason


class SecureDomains:
    """The secure domains of one endpoint; ``first_counter`` as in :class:`SecureRecords`."""

    def __init__(
        self,
        domains: Iterable[SecureDomain] = (),
        counts: Counts | None = None,
        *,
        first_counter: int = 0,
    ) -> None:
        self.counts = Counts() if counts is None else counts
        self._first_counter, self._owners = first_counter, dict[bytes, int]()
        self._records: dict[int, SecureRecords] = {}
        for domain in domains:
            self.add(domain)

    def __iter__(self) -> Iterator[SecureRecords]:
        return iter(self._records.values())

    def add(self, domain: SecureDomain) -> SecureRecords:
        """Raises :class:`SecureDomainError` where the SDI is taken, or a key was in use before."""
        if domain.sdi in self._records:
            raise SecureDomainError(f"SDI {domain.sdi} is taken; choose another one")
        records = SecureRecords(
            domain, self.counts, first_counter=self._first_counter, owners=self._owners
        )
        self._records[domain.sdi] = records
        return records

    def remove(self, sdi: int) -> None:
        """Leave a domain; :class:`SecureDomainError` if the endpoint is not in it."""
        if self._records.pop(sdi, None) is None:
            raise SecureDomainError(f"SDI {sdi} is unknown; add its domain first")

    def find(self, sdi: int) -> SecureRecords | None:
        return self._records.get(sdi)

    def open(
        self,
        prefix: bytes,
        packet: bytes | memoryview,
        address_size: int = _IPV4_SIZE,
        now: int = 0,
    ) -> bytes | str:
        """Decrypt as :meth:`SecureRecords.open` does, with the domain that the packet names."""
        if len(packet) < _LEAST:
            self.counts[TRUNCATED] += 1
            return TRUNCATED
        records = self._records.get(sdi_of(packet))
        if records is None:
            self.counts[UNKNOWN_SDI] += 1
            return UNKNOWN_SDI
        return records.open(prefix, packet, address_size, now)

    def peek(
        self, prefix: bytes, packet: bytes | memoryview, address_size: int = _IPV4_SIZE
    ) -> bytes | str:
        """Peek into a trimmed packet (:meth:`SecureRecords.peek`) with the domain that it names."""
        records = self._records.get(sdi_of(packet)) if len(packet) > _TSS.size else None
        if records is None:
            reason = UNKNOWN_SDI if len(packet) > _TSS.size else TRUNCATED
            self.counts[reason] += 1
            return reason
        return records.peek(prefix, packet, address_size)
