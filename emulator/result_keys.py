"""Meanings of the keys of ``result.json``, for people who read them.

The manual's tables are made from these (``python -m tests.reference_tables``).
"""

from __future__ import annotations

from collections.abc import Mapping

#: Keys of :class:`emulator.results.Result`.
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
    "rows": "one for each row of the table and each seed",
    "summary": (
        "with several seeds: one for each row, with the median of every number, and "
        "`time_min_us` and `time_max_us` over the seeds"
    ),
    "endpoints": "[counters](#counters) of every GPU, by its name",
    "ports": "[counters](#counters) of every port, by `node:port`",
    "fidelity": "`verdict`, `reasons`, and more ([below](#fidelity))",
    "digest": "one number over every frame at every port with its time; null with `--clock host`",
    "unfinished": (
        "null, or what was delivered of the trial that failed: messages and octets, GPUs that "
        "had not ended, and the faults"
    ),
    "errors": "sentences; a run with one has failed",
    "warnings": "sentences",
}

#: Keys that every row has, or that every kind of trial may add.
ROW: Mapping[str, str] = {
    "transport": "what the row ran with",
    "switch": "what the row ran with",
    "seed": "what the row ran with",
    "collective": "the collective, or the name of another pattern",
    "size_bytes": "its size",
    "time_us": "the mean time of the iterations",
    "time_min_us": "the shortest iteration",
    "time_max_us": "the longest iteration",
    "iterations": "iterations that count",
    "began_us": "when each of them began, on the clock of `telemetry.csv`",
    "ideal_us": "the lower bound of the time",
    "efficiency": "`ideal_us` over `time_us`",
    "wrong": "elements that are not what numpy computes; null where nothing is compared",
    "data_packets": "data packets sent for the first time",
    "retransmitted_packets": "data packets sent again",
    "relayed_messages": "writes that took another GPU's NIC ([PXN](#pxn))",
    "algbw_gbps": "of collectives: algorithm bandwidth as nccl-tests defines it",
    "busbw_gbps": "of collectives: bus bandwidth as nccl-tests defines it",
    "endpoints": "`fresh` for each iteration, or `kept`",
    "gap_us": "the least time between iterations",
    "frames_tagged": "with `--frame-latency`: frames of data that were tagged as they left a NIC",
    "frames_timed": "those of them that reached a NIC, in `frame_latency.csv`",
    "frames_ambiguous": "arrivals left out, as a packet with the same header had left twice",
    "frame_min_us": "the least time from a frame's first octet at a NIC to its last at another",
    "frame_mean_us": "the mean of these times",
    "frame_p50_us": "their percentiles, by nearest rank",
    "frame_p95_us": "their percentiles, by nearest rank",
    "frame_p99_us": "their percentiles, by nearest rank",
    "frame_p999_us": "their percentiles, by nearest rank",
    "frame_max_us": "the longest of them",
    "fidelity": "`verdict` and `reasons` of this row",
    "digest": "with the virtual clock: of this row's frames",
}

#: Keys that collectives add (:mod:`scenarios.collectives`).
COLLECTIVE_ROW: Mapping[str, str] = {
    "count": "elements of a GPU's part, where the size has parts, as nccl-tests prints them",
    "type": "type of the elements by nccl-tests' names",
    "redop": "reduction, or `none`",
    "root": "the root's rank, or -1",
    "algorithm": "what ran, also where the user wrote `auto`",
    "model_us": "with `auto`: the times of NCCL's model",
    "members": "GPUs of a communicator",
    "communicators": "how many communicators worked side by side",
    "in_place": "whether the result replaced the source",
    "place": "the same as a word: `out` or `in`",
    "order": "as chosen",
    "channels": "as chosen",
    "cross_rail_hops": "of rings: hops between hosts that change rail",
    "fabric_bytes": "payload that arrived over NICs in an iteration",
    "fabric_bytes_derived": "payload over NICs that the schedules name",
    "imbalance": "of `alltoallv`: what the most popular GPU receives over the mean",
}

#: Keys that traffic scenarios add (:mod:`emulator.run.report.traffic`).
TRAFFIC_ROW: Mapping[str, str] = {
    "flows": "flows of the pattern, victims not included",
    "total_bytes": "octets of all flows together",
    "goodput_gbps": "payload delivered while all flows were under way",
    "goodput_at": "where it was observed: `fabric boundary` (receivers' ports) or `endpoint`",
    "goodput_share": "its share of what the links could carry",
    "message_p50_us": "median time from a message's start until its receiver has verified it",
    "message_p99_us": "99th percentile of these times",
    "message_mean_us": "of `trace`: their mean, the flow completion times of its messages",
    "message_max_us": "of `trace`: the largest of them",
    "victim_p50_us": "the median over the victims' messages, where there are victims",
    "victim_p99_us": "the 99th percentile over the victims' messages",
    "converged_us": "of `onset`: from the onset until all flows stay near their mean rate",
    "jain": "Jain's fairness index of the flows' rates",
    "marked_packets": "packets that switches marked (ECN)",
    "trimmed_packets": "packets that switches trimmed",
    "dropped_packets": "packets that switches dropped",
    "drops": "these by reason",
    "pauses": "PFC: frames that asked for a pause",
    "paused_us": "PFC: time that ports were paused, added up",
    "paused_nics_us": "the part of it at NICs",
    "lossless_buffer_bytes": "what a switch port keeps for lossless data: XOFF and headroom (PFC), "
    "or all that its credits stand for (CBFC)",
    "lossless_held_bytes": "the most that a port held of it",
    "replays": "LLR: replays that began, after a NACK or the replay timer",
    "replayed_packets": "LLR: frames that left again",
    "replay_timeouts": "LLR: replay timers that expired",
    "link_recovery_us": "LLR: mean time from an error at the receiver until the frame is there",
    "link_recovery_max_us": "the longest of these times",
    "link_lost_packets": "frames that bit errors took on cables with a link layer, for good",
    "replay_full_us": "LLR: time that ports waited for room in the replay buffer, added up",
    "credit_stalled_us": "CBFC: time that data waited for credits at ports, added up",
    "credit_stalled_nics_us": "the part of it at NICs",
    "timeouts": "retransmission timers that expired",
    "max_queue_bytes": "the deepest queue of data",
    "max_queue_port": "the port of that queue",
    "steady_queue_bytes": "mean depth at the bottleneck while all flows were under way",
    "links_max_mean": "parallel uplinks: load of the busiest over the mean",
    "links_jain": "parallel uplinks: Jain's index of their loads",
    "reordered_packets": (
        "packets that arrived after one sent later. RoCEv2 counts all packets behind a loss, too: "
        "do not compare it with UET's"
    ),
}

#: Keys that a run with ``--fault`` adds (:mod:`emulator.run.faults.disturbance`).
FAULT_ROW: Mapping[str, str] = {
    "faults": "each fault: when it came, which GPUs it cut off, and what became of goodput",
    "undisturbed_us": "an iteration without the faults",
    "slowdown": "how many times as long the others took",
    "lost_packets": "by reason (see [lost packets](#lost-packets))",
    "undisturbed_retransmitted_packets": "retransmissions without the faults",
    "cut_off_gpus": "GPUs that no other one could reach",
    "cut_off_pairs": "pairs of GPUs that could not reach each other",
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
    "nic.send_refused": "frames that the kernel refused to take (`--clock host`)",
    "nic.send_retries": "attempts to send again, as the kernel had no room (`--clock host`)",
    "nic.socket_drops": "frames that the receive ring had no room for",
    "nic.ring_full": "times that all slots of the ring were in use (`--clock host`)",
    "nic.oversized": "frames longer than a slot of the ring (`--clock host`)",
    "nic.held": "frames in the delay line now (`--clock host`)",
    "nic.unknown_sources": "frames from an address that the delay line does not know",
    "nic.moved": "frames that left by another port after theirs lost carrier",
    "nic.discarded": "frames that waited at such a port and left by none",
    "executor.stale_arrivals": "arrivals that no operation of the schedule took",
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
