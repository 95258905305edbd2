"""The longest chain of a schedule's messages that wait for each other."""

from __future__ import annotations

import numpy as np

from emulator.measures.message_graph import MessageGraph


def longest_chain(graph: MessageGraph) -> int:
    """Return the number of messages in the longest chain of dependent ones.

    At each of them two endpoints compute, whatever the fabric does.  The schedules are sound:
    every receive has its sender, and none waits for itself.
    """
    messages = np.zeros(len(graph), np.int32)
    sender = np.full(len(graph), -1, np.int32)
    sender[graph.receive] = graph.send
    for level in graph.levels:
        graph.needs.largest(level, messages, messages)
        receives = level[sender[level] >= 0]
        sent = messages[sender[receives]]
        messages[receives] = np.maximum(messages[receives], sent) + 1
    return int(messages.max(initial=0))
