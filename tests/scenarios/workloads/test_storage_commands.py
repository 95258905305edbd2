"""Commands to storage nodes have the messages of NVMe over RDMA, and those alone."""

import numpy as np
import pytest

from emulator.sim.endpoint.operations.schedule import Receive, Schedule, Write
from scenarios.workloads.storage_commands import (
    COMMAND_OCTETS,
    COMPLETION_OCTETS,
    REQUEST_OCTETS,
    StorageCommand,
    StorageCommands,
)

SERVER, NODE, LENGTH = 0, 1, 4096
NUMBER = 5


def schedules(*, writes: bool, depth: int = 2) -> list[Schedule]:
    commands = [
        StorageCommand(server=SERVER, node=NODE, data=at * LENGTH, disk=at * LENGTH, octets=LENGTH)
        for at in range(NUMBER)
    ]
    content = np.arange(NUMBER * LENGTH, dtype=np.uint8)
    memories = {SERVER if writes else NODE: content}
    return StorageCommands(
        ranks=3, commands=commands, depth=depth, writes=writes, memories=memories
    ).schedules()


def messages(schedule: Schedule) -> list[int]:
    """Return the lengths of what ``schedule`` writes, in its order."""
    return [one.local.length for one in schedule.operations if isinstance(one, Write)]


def test_a_read_is_a_capsule_data_and_a_response() -> None:
    server, node, idle = schedules(writes=False)
    assert messages(server) == [COMMAND_OCTETS] * NUMBER
    assert messages(node) == [LENGTH, COMPLETION_OCTETS] * NUMBER
    assert idle.operations == ()


def test_the_node_fetches_what_is_written_and_responds() -> None:
    server, node, _ = schedules(writes=True)
    assert messages(server) == [COMMAND_OCTETS, LENGTH] * NUMBER
    assert messages(node) == [REQUEST_OCTETS, COMPLETION_OCTETS] * NUMBER
    kinds = [type(one) for one in node.operations[:4]]
    assert kinds == [Receive, Write, Receive, Write]
    assert [one.after for one in node.operations[:4]] == [(), (0,), (), (2,)]


@pytest.mark.parametrize("writes", [False, True])
def test_every_write_has_one_receive_of_its_tag(writes: bool) -> None:
    server, node, _ = schedules(writes=writes)
    for sender, receiver in ((server, node), (node, server)):
        sent = [(one.tag, one.remote) for one in sender.operations if isinstance(one, Write)]
        received = [(one.tag, one.into) for one in receiver.operations if isinstance(one, Receive)]
        assert sent == received
        assert len({tag for tag, _ in sent}) == len(sent)
        assert all(into.buffer in receiver.buffers for _, into in received)


def test_a_command_waits_for_the_one_that_frees_its_place() -> None:
    server, _, _ = schedules(writes=False, depth=2)
    capsules = [one for one in server.operations if isinstance(one, Write)]
    ends = [
        index
        for index, one in enumerate(server.operations)
        if isinstance(one, Receive) and one.into.length == COMPLETION_OCTETS
    ]
    assert [one.after for one in capsules] == [(), (), *((end,) for end in ends[: NUMBER - 2])]
    for end in ends:  # with its data, which may come behind the response
        assert server.operations[end].after == (end - 1,)
        data = server.operations[end - 1]
        assert isinstance(data, Receive)
        assert data.into.length == LENGTH
