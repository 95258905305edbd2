"""Counters, association numbers and epochs: what key management does while traffic flows."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.harness.examples import examples
from tests.harness.uet.tss_vectors import KEY, OTHER_KEY, move, opened, parts, sealed_frame
from uet.tss import record
from uet.tss.record import SecureRecords
from uet.tss.secure_domain import COUNTER_LIMIT, SealError, SecureDomain, SecureDomainError

HEADER = bytes(range(56))
THIRD_KEY = bytes(range(200, 232))


def domain(**changes: Any) -> SecureDomain:
    fields: dict[str, Any] = {"sdi": 9, "mode": "cluster", "keys": {0: KEY, 1: OTHER_KEY}}
    return SecureDomain(**fields | changes)


def pair(**changes: Any) -> tuple[SecureRecords, SecureRecords]:
    return SecureRecords(domain(**changes)), SecureRecords(domain(**changes))


def stamp(frame: bytes) -> tuple[int, int, int]:
    """AN, epoch and counter of a packet without SSI."""
    _, packet, _ = parts(frame)
    return (
        packet[0] & 1,
        int.from_bytes(packet[4:6], "big"),
        int.from_bytes(packet[6:12], "big"),
    )


@pytest.mark.conformance("C-131")
def test_every_frame_has_a_counter_of_its_own() -> None:
    sender = SecureRecords(domain(epoch=5))
    retransmitted = [sealed_frame(sender, HEADER, b"the same packet") for _ in range(300)]
    assert [stamp(frame) for frame in retransmitted] == [(0, 5, n) for n in range(300)]
    assert len({frame[46:] for frame in retransmitted}) == 300


@pytest.mark.conformance("C-131", "C-132")
def test_rotation_starts_the_counter_anew_and_both_keys_open() -> None:
    sender, receiver = pair(epoch=5)
    before = [sealed_frame(sender, HEADER) for _ in range(3)]
    sender.rotate(1)
    assert sender.an == 1
    after = [sealed_frame(sender, HEADER) for _ in range(3)]
    assert [stamp(frame) for frame in before] == [(0, 5, n) for n in range(3)]
    assert [stamp(frame) for frame in after] == [(1, 0, n) for n in range(3)]
    mixed = [frame for both in zip(after, before, strict=True) for frame in both]
    assert [opened(receiver, frame) for frame in mixed] == [HEADER] * 6
    # To and fro between two live keys: no counter comes twice under one key.
    sender.rotate(0)
    assert stamp(sealed_frame(sender, HEADER)) == (0, 5, 3)


@pytest.mark.conformance("C-132")
def test_make_before_break_with_a_third_key() -> None:
    sender, receiver = pair()
    first = sealed_frame(sender, HEADER)
    for records in (receiver, sender):
        records.rotate(1)
        records.set_key(0, THIRD_KEY)
    second = sealed_frame(sender, HEADER)
    sender.rotate(0)
    third = sealed_frame(sender, HEADER)
    assert stamp(third) == (0, 0, 0)
    assert [opened(receiver, frame) for frame in (third, second)] == [HEADER, HEADER]
    assert opened(receiver, first) == record.BAD_TAG  # its key is gone
    receiver.rotate(0)
    receiver.retire(1)
    assert receiver.live == [0]
    assert opened(receiver, second) == record.NO_KEY
    assert opened(receiver, third) == HEADER


@pytest.mark.parametrize(
    ("ask", "word"),
    [
        (lambda r: r.rotate(1), "no key for AN 1"),
        (lambda r: r.rotate(2), "no key for AN 2"),
        (lambda r: r.retire(0), "being sent with"),
        (lambda r: r.retire(1), "no key for AN 1"),
        (lambda r: r.set_key(0, THIRD_KEY), "being sent with"),
        (lambda r: r.set_key(1, KEY), "in use before"),
        (lambda r: r.set_key(1, THIRD_KEY[1:]), "31 octets"),
        (lambda r: r.set_key(2, THIRD_KEY), "0..1"),
        (lambda r: r.set_key(1, THIRD_KEY, epoch=-1), "epoch"),
        (lambda r: r.set_epoch(6), "no epoch after 7"),
        (lambda r: r.set_epoch(0x8008), "no epoch after 7"),
        (lambda r: r.set_epoch(1 << 16), "no epoch after 7"),
        (lambda r: r.set_epoch(9, an=1), "no key for AN 1"),
        (lambda r: r.position(1), "no key for AN 1"),
    ],
)
def test_what_key_management_may_not_do(ask: Any, word: str) -> None:
    records = SecureRecords(domain(keys={0: KEY}, epoch=7))
    with pytest.raises(SecureDomainError, match=word):
        ask(records)
    assert records.position(0) == (7, 0)


def test_a_retired_key_does_not_come_back() -> None:
    sender, _ = pair()
    sealed_frame(sender, HEADER)
    sender.rotate(1)
    sender.retire(0)
    with pytest.raises(SecureDomainError, match="in use before"):
        sender.set_key(0, KEY)


@pytest.mark.conformance("C-137")
def test_a_new_epoch_changes_the_packet_key_and_not_the_counter() -> None:
    sender, receiver = pair(reject_old_epochs=True, rx_max_epoch_lifetime=0)
    old = sealed_frame(sender, HEADER)
    sender.set_epoch(1)
    new = sealed_frame(sender, HEADER)
    assert [stamp(old), stamp(new)] == [(0, 0, 0), (0, 1, 1)]
    assert [opened(receiver, frame) for frame in (new, old)] == [HEADER, HEADER]
    receiver.set_epoch(1)
    assert opened(receiver, old) == record.OLD_EPOCH
    assert opened(receiver, new) == HEADER


def test_a_clients_epoch_comes_with_its_key() -> None:
    key, next_key = KEY + bytes(12), OTHER_KEY + bytes(12)
    client = SecureRecords(SecureDomain(sdi=9, mode="client", keys={0: key}))
    with pytest.raises(SecureDomainError, match="new key"):
        client.set_epoch(1)
    client.set_key(1, next_key, epoch=1)
    client.rotate(1)
    assert client.position(1) == (1, 0)


@pytest.mark.conformance("C-131", "C-138")
def test_an_exhausted_counter_stops_the_sender_until_it_rotates() -> None:
    sender, receiver = pair()
    move(sender, 0, 0, COUNTER_LIMIT - 1)
    assert opened(receiver, sealed_frame(sender, HEADER)) == HEADER
    for _ in range(2):
        with pytest.raises(SealError, match="AN 0 needs a new key") as refusal:
            sealed_frame(sender, HEADER)
        assert refusal.value.reason == record.EXHAUSTED
    assert sender.counts == {record.EXHAUSTED: 2}
    assert sender.position(0) == (0, COUNTER_LIMIT)
    sender.rotate(1)
    assert opened(receiver, sealed_frame(sender, HEADER)) == HEADER


@pytest.mark.conformance("C-136")
def test_a_server_and_its_client_share_the_counters_of_one_key() -> None:
    server = SecureRecords(
        SecureDomain(sdi=9, mode="server", keys={0: KEY}, clients={"10.0.0.2": 2})
    )
    client = SecureRecords(
        SecureDomain(sdi=9, mode="client", keys={0: OTHER_KEY + bytes(12)}, ssi=2)
    )
    assert server.position(0)[1] == COUNTER_LIMIT // 2
    move(client, 0, 0, COUNTER_LIMIT // 2)
    with pytest.raises(SealError):
        sealed_frame(client, HEADER)


@dataclass
class Sent:
    """A packet on the wire, with what the model knows of it."""

    frame: bytes
    an: int
    key: int
    epoch: int
    plaintext: bytes


def key_number(n: int) -> bytes:
    return n.to_bytes(32, "big")


class Rotation(RuleBasedStateMachine):
    """One sender, one receiver, key management that reaches them at different times.

    The wire replays, reorders and keeps packets for ever.  The model is two keys and two epochs
    a side; it never looks into the packets.
    """

    LIFETIME = 2

    @initialize(mode=st.sampled_from(["direct", "cluster"]), rekey=st.booleans())
    def begin(self, mode: str, rekey: bool) -> None:
        fields: dict[str, Any] = {"mode": mode, "keys": {0: key_number(0)}}
        if rekey and mode == "cluster":
            fields |= {"rekey_mask": 0xFFFF, "rekey_shift": 1}
        secure = domain(**fields, reject_old_epochs=True, rx_max_epoch_lifetime=self.LIFETIME)
        self.ends = [SecureRecords(secure), SecureRecords(secure)]
        self.keys: list[dict[int, int]] = [{0: 0}, {0: 0}]
        self.epochs: list[dict[int, int]] = [{0: 0}, {0: 0}]
        self.sends_with = [0, 0]
        self.wire: list[Sent] = []
        self.stamps: set[tuple[int, int, int]] = set()
        self.refused = 0

    @rule(length=st.integers(1, 30))
    def send(self, length: int) -> None:
        an = self.sends_with[0]
        plaintext = len(self.wire).to_bytes(4, "big") * length
        frame = sealed_frame(self.ends[0], plaintext)
        key, epoch = self.keys[0][an], self.epochs[0][an]
        found_an, found_epoch, counter = stamp(frame)
        assert (found_an, found_epoch) == (an, epoch)
        assert (key, found_epoch, counter) not in self.stamps
        self.stamps.add((key, found_epoch, counter))
        self.wire.append(Sent(frame, an, key, epoch, plaintext))

    @precondition(lambda self: self.wire)
    @rule(data=st.data(), times=st.integers(1, 3))
    def deliver(self, data: st.DataObject, times: int) -> None:
        sent = data.draw(st.sampled_from(self.wire))
        for _ in range(times):
            found = opened(self.ends[1], sent.frame)
            assert found == self.expected(sent)
            self.refused += isinstance(found, str)

    def expected(self, sent: Sent) -> bytes | str:
        if sent.an not in self.keys[1]:
            return record.NO_KEY
        if self.epochs[1][sent.an] - sent.epoch > self.LIFETIME:
            return record.OLD_EPOCH
        return sent.plaintext if self.keys[1][sent.an] == sent.key else record.BAD_TAG

    @rule(end=st.sampled_from([0, 1]))
    def take_the_next_key(self, end: int) -> None:
        """Both get the same keys in the same order, each when key management reaches it."""
        idle = 1 - self.sends_with[end]
        following = max(self.keys[end].values()) + 1
        if following % 2 != idle:
            return
        self.ends[end].set_key(idle, key_number(following))
        self.keys[end][idle] = following
        self.epochs[end][idle] = 0

    @rule(end=st.sampled_from([0, 1]))
    def rotate(self, end: int) -> None:
        idle = 1 - self.sends_with[end]
        if idle in self.keys[end]:
            self.ends[end].rotate(idle)
            self.sends_with[end] = idle

    @rule(end=st.sampled_from([0, 1]))
    def retire(self, end: int) -> None:
        idle = 1 - self.sends_with[end]
        # An older key only: the newest numbers the next one.
        if idle in self.keys[end] and self.keys[end][idle] < max(self.keys[end].values()):
            self.ends[end].retire(idle)
            del self.keys[end][idle], self.epochs[end][idle]

    @rule(end=st.sampled_from([0, 1]), by=st.integers(1, 4))
    def advance_the_epoch(self, end: int, by: int) -> None:
        an = self.sends_with[end]
        self.epochs[end][an] += by
        self.ends[end].set_epoch(self.epochs[end][an])

    @invariant()
    def sides_agree_with_the_model(self) -> None:
        for end, keys, epochs in zip(self.ends, self.keys, self.epochs, strict=True):
            assert end.live == sorted(keys)
            assert {an: end.position(an)[0] for an in end.live} == epochs
        assert sum(self.ends[1].counts.values()) == self.refused
        assert not self.ends[0].counts


TestRotation = pytest.mark.conformance("C-131", "C-132")(Rotation.TestCase)
TestRotation.settings = examples(40, stateful_step_count=40)
