"""Our endpoint in the place of a captured target: it hears the captured initiator."""

from dataclasses import dataclass, field

from tests.harness.replay.capture import TARGET, decode, domain, packets
from tests.harness.replay.cases import CASES
from tests.harness.replay.conversation import Canonical, Conversation
from tests.harness.replay.endpoints import SEALED_AGAIN, endpoint, receives
from tests.harness.replay.outcomes import memory_before
from tests.harness.replay.translation import Translator, sealed
from uet.transport import Completion, ReceiveRequest
from uet.tss.record import SecureRecords


@dataclass
class Replay:
    """Hold what a replay brought about, beside what the capture has."""

    expected: list[Canonical] = field(default_factory=list)
    answers: list[Canonical] = field(default_factory=list)
    memory: bytearray = field(default_factory=bytearray)
    receives: list[ReceiveRequest] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    open_pdcs: int = 0


def replay(name: str) -> Replay:
    """Feed the initiator's frames of a capture to our endpoint, at their times."""
    case = CASES[name]
    fep = endpoint(name, TARGET)
    secure = domain(name)
    records = SecureRecords(secure) if secure is not None else None
    captured, live = Conversation(TARGET), Conversation(TARGET)
    translator = Translator(captured, live, records)
    result = Replay(memory=memory_before(case), receives=receives(case))
    fep.register(memoryview(result.memory), key=case.region_key)
    waiting = list(result.receives)
    now = sent = 0

    def take() -> None:
        nonlocal sent
        while frames := fep.transmit(now, 64):
            for header, payload in frames:
                answer = decode(bytes(header) + bytes(payload), records)
                form = live.canonical(answer)
                if "ses.target_restart_token" in answer.fields:
                    token = answer.fields["ses.target_restart_token"]
                    translator.tokens["target_restart_token"] = token
                if sent not in case.lost_answers:
                    result.answers.append(form)
                sent += 1
        result.completions.extend(fep.completions())

    for packet in packets(name):
        now = packet.time
        if waiting and now >= case.receive_at:
            for receive in waiting:
                fep.post_receive(receive)
            waiting.clear()
            take()
        if packet.side == TARGET:
            result.expected.append(captured.canonical(packet))
            continue
        captured.canonical(packet)
        frame = translator.translate(packet)
        if name in SEALED_AGAIN:
            assert records is not None
            frame = sealed(frame, records)
        live.canonical(decode(frame, records))
        fep.receive([memoryview(frame)], now)
        take()
    if name in SEALED_AGAIN:  # which the capture does not show
        for form in result.expected + result.answers:
            del form["secured"]
    result.counters = dict(fep.counters())
    result.open_pdcs = len(fep.table)
    return result
