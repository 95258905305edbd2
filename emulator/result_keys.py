"""Meanings of the keys of ``result.json``; those of its rows are metrics.

The manual's tables are made from these (``python -m tests.reference_tables``), and ``uetemu
explain`` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Keys of :class:`emulator.run.results.Result`.
RESULT: Mapping[str, str] = {
    "schema": "`uetemu.result/1`",
    "scenario": "the scenario",
    "parameters": "its parameters, by name",
    "topology": "the fabric",
    "ranks": "the number of its GPUs",
    "homing": (
        "null, or for GPUs with several ports: `asked`, `taken`, and with `homing=auto` the "
        "`reason` why it is not a bond"
    ),
    "transport": "that of all rows; where rows differ, what the user asked for",
    "switch": "the same of the switch",
    "fabric": (
        "`kernel`, or `model` of a run whose switches were a "
        "[model](#a-fabric-without-root) and no namespaces of the kernel"
    ),
    "seed": "the first seed",
    "seeds": "how many seeds",
    "dilation": "seconds of the machine for one second of the fabric; 1 with the virtual clock",
    "units": "what the ends of keys mean (below)",
    "metrics": "metrics of users' files, if there are any: what each means, its unit, where it was "
    "observed",
    "rows": "one for each row of the table and each seed",
    "summary": (
        "with several seeds: one for each row, with the median of every number, and "
        "`time_min_us` and `time_max_us` over the seeds"
    ),
    "endpoints": "[counters](#counters) of every GPU, by its name",
    "ports": "[counters](#counters) of every port, by `node:port`",
    "fidelity": "`verdict`, `reasons`, and more ([below](#fidelity))",
    "digest": "one number over every frame at every port with its time; null where a run failed",
    "unfinished": (
        "null, or what was delivered of the trial that failed: messages and octets, GPUs that "
        "had not ended, and the faults"
    ),
    "errors": "sentences; a run with one has failed",
    "warnings": "sentences",
}

#: Keys of each of ``call_sites``, which rows of ``uetemu torchrun`` have; behind them, headings.
CALL_SITE: Mapping[str, str] = {
    "site": "file and line of the script",
    "kind": "the collective, or `sendrecv`",
    "dtype": "type of the elements",
    "members": "ranks of the group",
    "calls": "calls; one of all members counts once",
    "bytes, octets": "their octets, each by the size that nccl-tests states",
    "time_us": "their times, each from the last member's call to the last result",
    "longest_us": "the longest of them",
    "exposed_us, exposed": "what of their times a rank stood still for, as a mean",
    "overlapped_us, overlapped": "the rest, beside which the rank did something else",
    "busbw_gbps": "bus bandwidth as nccl-tests defines it",
    "algorithms, algorithm": "the algorithms that were chosen, of a library with the protocol",
}

#: Counters of a GPU beside its transport's, by name under ``endpoints``.
ENDPOINT: Mapping[str, str] = {
    "nic.frames_in": "frames received",
    "nic.frames_out": "frames sent",
    "nic.octets_in": "octets of frames received, from the Ethernet header on",
    "nic.octets_out": "octets of frames sent",
    "nic.link_down": "frames not sent, as no port had carrier",
    "nic.gpu_dead": "frames received and dropped, since the GPU is dead",
    "nic.pending": "frames that wait to leave now",
    "nic.socket_drops": "frames that the receive ring had no room for",
    "executor.stale_arrivals": "arrivals that no operation of the schedule took",
    "host_memory.octets_staged": "octets that went through host memory, as without GPUDirect",
    "scale_up.copies_lost": "copies that never arrived, as a GPU died",
    "scale_up.copies_in": "copies received over NVLink",
    "scale_up.copies_out": "copies sent over NVLink",
    "scale_up.octets_in": "octets received over NVLink",
    "scale_up.octets_out": "octets sent over NVLink",
}

#: Counters of a port; ``control`` and ``data`` are its queues in the kernel.
PORT: Mapping[str, str] = {
    "rx_packets": "frames received, as the kernel counted them",
    "rx_bytes": "their octets, from the Ethernet header on",
    "rx_dropped": "frames that the kernel dropped on arrival",
    "tx_packets": "frames sent",
    "tx_bytes": "their octets",
    "tx_dropped": "frames that the kernel dropped on departure",
    "control.packets, data.packets": "frames that left the queue",
    "control.bytes, data.bytes": "their octets",
    "control.drops, data.drops": "frames that found no room in the queue",
    "control.backlog_packets, data.backlog_packets": "frames that wait in the queue now",
    "control.backlog_bytes, data.backlog_bytes": "their octets",
}

#: Counters of a traffic class under ``asic.classes`` (:class:`ClassCounters`).
SWITCH_CLASS: Mapping[str, str] = {
    "packets": "packets admitted to the queue",
    "bytes": "their octets on the wire",
    "marked": "packets marked (ECN)",
    "trimmed": "packets trimmed here; they count in the class `trimmed`, too",
    "corrupted": "a fault changed one bit",
    "duplicated": "a fault sent the packet twice",
    "reordered": "a fault sent the packet ahead of others that waited",
    "lost_bytes": "octets of `bytes` that never arrived: a fault of the cable took them",
    "drops": "packets dropped, by reason (below)",
}

#: Depths of a queue under ``asic.queues`` (:class:`QueueDepth`).
SWITCH_QUEUE: Mapping[str, str] = {
    "bytes": "octets that wait now",
    "max_bytes": "the deepest that it was",
    "histogram": "packets by the depth that they met, in bins",
    "bin_bytes": "width of a bin of the histogram (octets)",
}

#: What all ports of a switch use of their pool, under ``asic.pool`` of each (:class:`PoolUse`).
SWITCH_POOL: Mapping[str, str] = {
    "size_bytes": "octets that the switch's ports share",
    "bytes": "those in use now",
    "max_bytes": "the most that were",
    "headroom_bytes": "octets of headroom in use now",
    "headroom_max_bytes": "the most that were",
}

#: Counters of priority flow control under ``pfc`` of a port (:class:`PauseCounters`).
PAUSE: Mapping[str, str] = {
    "xoff_sent": "frames sent that ask for a pause",
    "xon_sent": "frames sent that end one",
    "xoff_received": "frames received that ask for a pause",
    "xon_received": "frames received that end one",
    "malformed": "MAC control frames that are no PAUSE by priority",
    "unsent": "pause frames that the port did not take: its link is down",
    "pauses": "times that the port was paused",
    "paused_ns": "how long the port was not allowed to send",
    "longest_pause_ns": "the longest of these pauses",
    "watchdog_storms": "times that the watchdog stepped in",
    "watchdog_ns": "how long the port sent in spite of a pause",
    "late_ns": "how much later than on hardware a pause was asked for or took effect, at worst",
    "max_held_bytes": "the most octets that the port's lossless buffer held",
    "freed_bytes": "octets of that buffer whose frames were lost where they waited to leave",
}

#: Counters of the link layer under ``link`` of a port (:class:`LinkCounters`).
LINK: Mapping[str, str] = {
    "acks_sent": "LLR: ACK ordered sets sent",
    "acks_received": "LLR: ACK ordered sets received",
    "nacks_sent": "LLR: NACK ordered sets sent",
    "nacks_received": "LLR: NACK ordered sets received",
    "replays": "LLR: replays that this port began",
    "replayed_frames": "LLR: frames that it sent again",
    "replayed_bytes": "LLR: their octets on the wire, which `tx_bytes` does not have",
    "replay_timer_expiries": "LLR: replay timers that expired",
    "duplicates": "LLR: frames received that had been taken before",
    "out_of_sequence": "LLR: frames received behind a missing one, which come again",
    "errored_frames": "frames received with a bit error",
    "errored_sets": "ordered sets received with a bit error",
    "lost_frames": "frames received with a bit error that nothing replays",
    "link_failures": "LLR: times that the limit of replays was exceeded",
    "buffer_full_stalls": "LLR: times that a full replay buffer stopped the port",
    "buffer_full_ns": "LLR: how long it did",
    "recovered_frames": "LLR: missing frames that came by a replay",
    "recovery_ns": "LLR: time from the error until they were there, added up",
    "credit_updates_sent": "CBFC: CF_Update sets sent: credits freed",
    "credit_updates_received": "CBFC: CF_Update sets received",
    "consumed_updates_sent": "CBFC: CC_Update sets sent: credits consumed",
    "consumed_updates_received": "CBFC: CC_Update sets received",
    "repaired_cells": "CBFC: cells of frames that never came, freed after a CC_Update",
    "credit_stalls": "CBFC: times that missing credits stopped the data of the port",
    "credit_stalled_ns": "CBFC: how long they did",
    "longest_recovery_ns": "LLR: the longest time from an error until the frame was there",
    "max_replay_bytes": "LLR: the most octets that the replay buffer held",
    "max_held_bytes": "CBFC: the most octets, in cells, that the receive buffer held",
}
