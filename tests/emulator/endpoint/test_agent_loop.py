"""The agent's loop by itself: what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from emulator.endpoint import agent as module
from emulator.endpoint.agent import Agent
from emulator.endpoint.loop_record import LoopRecord


class Waited(Exception):
    """The loop has gone to sleep; the arguments are what it waits for."""


class Nic:
    """Full when first asked, empty ever after: its last frames leave between two questions."""

    backlog, lateness, pollable, by_class = 0, 0, True, False

    def __init__(self, answers: Sequence[int]) -> None:
        self._answers = list(answers)

    def room(self) -> int:
        return self._answers.pop(0) if self._answers else 8

    @property
    def blocked(self) -> list[int]:
        return [] if self.room() else [99]

    def fileno(self) -> int:
        return 99

    def receive(self, now: int, limit: int) -> list[memoryview]:
        return []

    def next_deadline(self, now: int) -> int | None:
        return None


def idle_agent(answers: Sequence[int]) -> Agent:
    """One whose transport has frames to send and no room for them."""
    agent = Agent.__new__(Agent)
    agent._nic = Nic(answers)  # type: ignore[assignment]
    agent._clock = SimpleNamespace(now=lambda: 5, host_seconds=lambda ns: ns * 1e-9)  # type: ignore[assignment]
    agent._transport = SimpleNamespace(  # type: ignore[assignment]
        completions=list, transmit=lambda now, limit: [], next_deadline=lambda: 5
    )
    agent._executor = SimpleNamespace(running=False)  # type: ignore[assignment]
    agent._control = SimpleNamespace(send=lambda message: None, fileno=lambda: 98)  # type: ignore[assignment]
    agent._nvlink = agent._run = agent._close = None
    agent._silence = "filter"
    agent._record = LoopRecord()
    agent._lanes = ((agent._transport, agent._nic),)
    agent._readers = agent._readers_but_nic = [98]
    return agent


@pytest.mark.parametrize("answers", [[0, 0], [0, 0, 0], [0]])
def test_an_agent_with_frames_to_send_waits_for_room_or_for_the_transport(
    answers: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never for neither, however the NIC's answer changes while the agent makes up its mind."""

    def select(readers: object, writers: object, others: object, timeout: float | None) -> None:
        raise Waited(writers, timeout)

    monkeypatch.setattr(module.select, "select", select)
    with pytest.raises(Waited) as waited:
        idle_agent(answers).serve()
    writers, timeout = waited.value.args
    assert writers == [99] or timeout == 0, "it would sleep until something arrives"
