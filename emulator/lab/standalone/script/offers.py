"""Offers of an endpoint to its peers: memory to read and write, and receives for sends."""

from __future__ import annotations

from dataclasses import dataclass, field

from emulator.errors import UserError
from emulator.lab.standalone.script.contents import OctetPattern, must_fit, pattern
from emulator.lab.standalone.script.phrases import check_names, duration, ip, number, phrase, switch
from emulator.lab.standalone.script.requested_operations import DEFAULT_KEY
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.transport import ReceiveRequest

#: Octets of a region whose size is not stated, and the most that one may have.
_DEFAULT_SIZE = 1 << 20
_LARGEST = 1 << 34
_ACCESS = ("rw", "r", "w")


@dataclass(slots=True)
class OfferedRegion:
    """Memory that peers reach by ``key``, from ``address`` on where they name addresses."""

    key: int
    memory: memoryview
    readable: bool
    writable: bool
    name: str
    expect: OctetPattern | None = None
    address: int = 0


@dataclass(slots=True)
class Offer:
    """One receive, posted ``after`` ns from the first packet on (0: at once).

    With ``repost`` it is posted again after each completion.
    """

    size: int
    after: int
    repost: bool
    tag: int | None
    ignore: int
    initiator: int | None
    peer: str | None
    least_space: int | None
    expect: OctetPattern | None
    index: int = 0
    memory: memoryview = field(default_factory=lambda: memoryview(b""))

    def receive(self) -> ReceiveRequest:
        """The receive, in fresh memory."""
        self.memory = memoryview(bytearray(self.size))
        return ReceiveRequest(
            memory=self.memory,
            tag=self.tag,
            ignore=self.ignore,
            initiator=self.initiator,
            peer=self.peer,
            least_space=self.least_space,
            context=self,
        )


def region(
    text: str, seed: int, *, default_key: int = DEFAULT_KEY, more: tuple[str, ...] = ("idempotent",)
) -> OfferedRegion:
    """A region from ``KEY[:SIZE][,fill=PATTERN][,index=N][,access=rw|r|w]``, and ``more`` fields.

    It is zero unless filled.  ``KEY`` may be ``default``; ``idempotent`` sets its bit 63, which
    RUDI requires (UES Table 2-13); ``address=N`` is where it begins for peers.
    """
    reported = phrase(text)
    where = f"--region {text}"
    check_names(reported.fields, ("fill", "index", "access", "expect", *more), where)
    key = default_key if reported.head == "default" else number(reported.head, f"{where}: the key")
    if switch(reported.fields.get("idempotent", False), f"{where}: idempotent"):
        key |= IDEMPOTENT_SAFE
    size = _DEFAULT_SIZE
    if reported.size == "":
        raise UserError(f"{where}: say how many octets, for example --region {reported.head}:64k")
    if reported.size is not None:
        size = number(reported.size, f"{where}: the size", low=1, high=_LARGEST)
    access = reported.fields.get("access", "rw")
    if access not in _ACCESS:
        raise UserError(f"{where}: access is {access!r}; choose one of {', '.join(_ACCESS)}")
    index = number(reported.fields.get("index", 0), f"{where}: index", high=2**32)
    fill = pattern(reported.fields.get("fill", "zero"), f"{where}: fill")
    must_fit(2 * size, where)
    memory = memoryview(bytearray(fill.octets(size, index, seed)))
    expect = reported.fields.get("expect")
    return OfferedRegion(
        key=key,
        memory=memory,
        readable="r" in access,
        writable="w" in access,
        name=f"{key:#x}",
        expect=None if expect is None else pattern(expect, f"{where}: expect"),
        address=number(reported.fields.get("address", 0), f"{where}: address"),
    )


def receives(
    text: str,
    default_after: int,
    *,
    matching: tuple[str, ...] = ("tag", "ignore", "initiator", "peer", "multi"),
) -> list[Offer]:
    """Receives from ``SIZE[xN][,after=TIME][,repost][,expect=PATTERN][,index=N]...``.

    What they match by may follow: of ``tag=``, ``ignore=``, ``initiator=``, ``peer=FA`` and
    ``multi=LEAST`` those that the transport has (``matching``).
    """
    reported = phrase(text)
    where = f"--receive {text}"
    check_names(reported.fields, (*matching, "after", "repost", "expect", "index"), where)
    size_text, times, count_text = reported.head.lower().partition("x")
    if size_text == "0" and times:  # 0x400: hexadecimal, not no octets 400 times
        size_text, times, count_text = reported.head.lower(), "", ""
        digits, second, more = reported.head.lower()[2:].partition("x")
        if second:
            size_text, times, count_text = f"0x{digits}", second, more
    if reported.size is not None:
        raise UserError(f"{where}: write SIZExCOUNT, for example --receive 4096x3")
    if not size_text:
        raise UserError(f"{where}: say how many octets, for example --receive 4096x3")
    size = number(size_text, f"{where}: the size", high=_LARGEST)
    count = number(count_text, f"{where}: the count", low=1, high=65_536) if times else 1
    must_fit(size * count, where)
    fields = reported.fields

    def maybe(name: str, bits: int = 64) -> int | None:
        value = fields.get(name)
        return None if value is None else number(value, f"{where}: {name}", high=(1 << bits) - 1)

    peer = fields.get("peer")
    if peer is not None:
        peer = ip(peer, f"{where}: peer")
    after = default_after
    if "after" in fields:
        after = duration(fields["after"], f"{where}: after")
    expect = fields.get("expect")
    repost = switch(fields.get("repost", False), f"{where}: repost")
    if repost and "multi" in fields:
        raise UserError(f"{where}: a multi-receive completes several times; leave out repost")
    first = maybe("index", 32) or 0
    return [
        Offer(
            size=size,
            after=after,
            repost=repost,
            tag=maybe("tag"),
            ignore=maybe("ignore") or 0,
            initiator=maybe("initiator", 32),
            peer=peer,
            least_space=maybe("multi"),
            expect=None if expect is None else pattern(expect, f"{where}: expect"),
            index=first + index,
        )
        for index in range(count)
    ]
