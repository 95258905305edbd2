"""A semantic sublayer that says what the test tells it to, and remembers what it was given."""

from collections.abc import Mapping

from tests.harness.uet.script import Script
from uet.fep import FabricEndpoint
from uet.pds.semantics import ACCEPTED, NO_ROOM, Answer, Context, Response
from uet.wire import headers
from uet.wire.codes import NextHeader, ResponseOpcode, ReturnCode

_SES = headers.SES_STD_SOM.size


def guaranteed(code: ReturnCode = ReturnCode.NO_MATCH, message_id: int = 1) -> Response:
    """A response that the target keeps until it is cleared."""
    return Response(
        headers.SES_RESPONSE.encode(
            opcode=ResponseOpcode.RESPONSE, return_code=code, message_id=message_id, job_id=1
        )
    )


class StubSemantics:
    """Stands in for the target side of SES; install it before any PDC is made.

    ``answers`` are by PSN, and used once each: without one a request is accepted.
    """

    def __init__(self, script: Script, answers: Mapping[int, Answer] | None = None) -> None:
        self.answers = dict(answers or {})
        self.taken: list[tuple[int, bytes]] = []
        self.pdcs: list[Context] = []
        script.fep.deliver = self.deliver

    def deliver(
        self, pdc: Context, psn: int, next_header: int, packet: memoryview, at: int
    ) -> Answer:
        assert next_header == NextHeader.REQUEST_STD
        answer = self.answers.pop(psn, ACCEPTED)
        if answer is not NO_ROOM:
            self.taken.append((psn, bytes(packet[at + _SES :])))
            self.pdcs.append(pdc)
        return answer

    @property
    def psns(self) -> list[int]:
        """Return the PSNs of the requests taken, in the order of being taken."""
        return [psn for psn, _ in self.taken]


def watch(fep: FabricEndpoint) -> list[tuple[int, int]]:
    """(PDC id, PSN) of every request that SES takes, in order; call it before any PDC is made."""
    taken: list[tuple[int, int]] = []
    deliver = fep.deliver

    def note(pdc: Context, psn: int, next_header: int, packet: memoryview, at: int) -> Answer:
        answer = deliver(pdc, psn, next_header, packet, at)
        if answer is not NO_ROOM:
            taken.append((pdc.id, psn))
        return answer

    fep.deliver = note
    return taken
