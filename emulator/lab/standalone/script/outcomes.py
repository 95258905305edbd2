"""Outcomes of operations and of peers' messages: judged, counted, reported and saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emulator.lab.standalone.events import EventReport
from emulator.lab.standalone.script.contents import decode, summary
from emulator.lab.standalone.script.offers import Offer, OfferedRegion
from emulator.lab.standalone.script.requested_operations import Message
from emulator.whole_file import write_whole
from uet.transport import Completion


@dataclass(slots=True)
class OutcomeTally:
    posted: int = 0
    succeeded: int = 0
    failed: int = 0
    received: int = 0
    errors: list[str] = field(default_factory=list)


class Outcomes:
    """Judges completions; ``save`` is the folder for data that arrives, if there is one."""

    def __init__(
        self, report: EventReport, regions: Sequence[OfferedRegion], *, save: Path | None, seed: int
    ) -> None:
        self._report = report
        self._regions = {region.key: region for region in regions}
        self._save, self._seed = save, seed
        self._saved = 0
        self.tally = OutcomeTally()

    def operation(
        self,
        message: Message,
        error: str | None,
        now: int,
        *,
        length: int | None = None,
        reason: str | None = None,
    ) -> None:
        stated: dict[str, object] = dict(message.stated)
        ok = error == message.error
        if not ok and message.error is not None:
            stated["expected_error"] = message.error
        if error is None and message.memory is not None:
            stated |= summary(message.memory)
            if message.datatype is not None:
                stated["values"] = decode(message.datatype, message.memory)
            if message.expected is not None:
                matches = bytes(message.memory) == message.expected
                stated["as_expected"] = matches
                ok = ok and matches
                if not matches:
                    stated["first_difference"] = _difference(message.memory, message.expected)
        if ok:
            self.tally.succeeded += 1
        else:
            self.tally.failed += 1
        self._report.event(
            "completion",
            kind=message.name,
            number=message.number,
            ok=ok,
            error=error,
            reason=reason,
            length=length,
            elapsed_us=round((now - message.posted_at) / 1000, 1),
            **stated,
        )

    def receive(self, completion: Completion, offer: Offer) -> None:
        at = completion.offset or 0
        octets = offer.memory[at : at + completion.length]
        rule = offer.expect
        expected = None
        if rule is not None and completion.error is None:
            expected = rule.octets(len(octets), offer.index, self._seed)
        self._arrival(completion, octets, expected, size=offer.size)

    def remote_write(self, completion: Completion) -> None:
        """Data that a peer announced with header data, or the end of something of ours."""
        region = self._regions.get(completion.key) if completion.key is not None else None
        octets = memoryview(b"")
        if region is not None and completion.error is None:
            at = completion.offset or 0
            octets = region.memory[at : at + completion.length]
        self._arrival(completion, octets, None)

    def _arrival(
        self,
        completion: Completion,
        octets: memoryview,
        expected: bytes | None,
        size: int | None = None,
    ) -> None:
        stated: dict[str, object] = {}
        ok = completion.error is None
        if ok:
            stated = summary(octets)
            stated["saved"] = self._save_octets(completion.kind, octets)
            if expected is not None:
                ok = bytes(octets) == expected
                stated["as_expected"] = ok
                if not ok:
                    stated["first_difference"] = _difference(octets, expected)
        self.tally.received += 1
        if not ok:
            self.tally.failed += 1
        self._report.event(
            "completion",
            kind=completion.kind,
            ok=ok,
            error=completion.error,
            peer=completion.peer,
            length=completion.length,
            offset=completion.offset,
            size=size,
            key=_hexadecimal(completion.key),
            tag=_hexadecimal(completion.tag),
            header_data=_hexadecimal(completion.header_data),
            initiator=completion.initiator,
            **stated,
        )

    def _save_octets(self, kind: str, octets: memoryview) -> str | None:
        if self._save is None:
            return None
        path = self._save / f"{self._saved:04d}-{kind}.bin"
        self._saved += 1
        write_whole(path, octets)
        return str(path)

    def regions_at_end(self) -> Iterator[dict[str, object]]:
        """Yield what the regions hold now; a region that is not as expected counts as failed."""
        for region in self._regions.values():
            stated: dict[str, object] = {"key": f"{region.key:#x}", "size": len(region.memory)}
            stated |= summary(region.memory)
            if region.expect is not None:
                requested = region.expect.octets(len(region.memory), 0, self._seed)
                stated["as_expected"] = bytes(region.memory) == requested
                if not stated["as_expected"]:
                    at = stated["first_difference"] = _difference(region.memory, requested)
                    self.tally.failed += 1
                    self.tally.errors.append(
                        f"region {region.key:#x} is not as expected from octet {at} on"
                    )
            if self._save is not None:
                path = self._save / f"region-{region.key:#x}.bin"
                write_whole(path, region.memory)
                stated["saved"] = str(path)
            yield stated


def _difference(have: bytes | memoryview, requested_one: bytes) -> int:
    pairs = enumerate(zip(bytes(have), requested_one, strict=False))
    shorter = min(len(have), len(requested_one))
    return next((at for at, (one, other) in pairs if one != other), shorter)


def _hexadecimal(value: int | None) -> str | None:
    return None if value is None else f"{value:#x}"
