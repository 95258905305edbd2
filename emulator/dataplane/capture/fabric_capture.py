"""Captures of chosen ports: one sniffer per node, one pcapng file in the end.

    capture = Capture(select("h0g0,rail0:up*", ports_of(topology)), namespace=..., folder=run)
    capture.start()
    ...
    record = capture.stop()      # run/capture.pcapng, interfaces named node:port

Times in the file are the wall clock's, to the nanosecond, and therefore dilated; the file's own
comment gives the factor (:func:`describe`).
"""

from __future__ import annotations

import fnmatch
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from emulator.dataplane.capture.pcapng import join, join_pcap
from emulator.dataplane.capture.sniffer import Dumpcap, PortCount, Sniffer, Tcpdump
from emulator.errors import UserError
from topologies.advice import question
from topologies.model import Topology

#: Octets of each frame that are kept: the longest stack of headers is Ethernet 14 + IEEE 802.1Q 4
#: + IPv6 40 + UDP 8 + TSS 16 (UES 3.7.11) + PDS request with congestion control 16 + SES standard
#: header with compare-and-swap extension 80 = 178.
SNAPLEN_HEADERS = 192
#: Whole frames: the largest snap length that libpcap takes.
SNAPLEN_FULL = 262_144
#: Memory for frames that wait in the kernel, for all ports together and for one (MiB).
BUFFER_TOTAL_MIB, BUFFER_PORT_MIB = 256, 32

_PARTS = "capture.parts"


@dataclass(frozen=True)
class Tap:
    """The chosen ports of one node."""

    node: str
    ports: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(f"{self.node}:{port}" for port in self.ports)


@dataclass(frozen=True, kw_only=True)
class CaptureRecord:
    """The outcome of a capture.  ``path`` is None if nothing could be saved.

    ``errors`` are sentences about parts that are missing; ``warnings`` about frames that the
    sniffers saw too late, which the network did carry.
    """

    path: Path | None
    ports: tuple[PortCount, ...]
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def ports_of(topology: Topology) -> dict[str, tuple[str, ...]]:
    """Every node of ``topology`` with the names of its ports."""
    return {node.name: tuple(port.name for port in node.ports) for node in topology.nodes}


def select(selection: str, ports: Mapping[str, Sequence[str]]) -> list[Tap]:
    """Resolve ``all``, ``none`` or ``NODE[:PORT],...`` against the ports of each node.

    Names may hold shell wildcards (``rail0:up*``, ``h?g0``); a node without a port stands for all
    its ports.  The answer keeps the order of ``ports`` and names no port twice.  Raises
    :class:`UserError` for a name or pattern that matches nothing.
    """
    text = selection.strip()
    if text == "none":
        return []
    chosen: dict[str, set[str]] = {}
    for item in ("*" if text == "all" else text).split(","):
        node_pattern, colon, port_pattern = (word.strip() for word in item.partition(":"))
        if not node_pattern or (colon and not port_pattern):
            raise UserError(
                f"capture selection {selection!r} has an empty part; "
                "write all, none or NODE[:PORT],... such as h0g0,rail0:up*"
            )
        nodes = fnmatch.filter(ports, node_pattern)
        if not nodes:
            raise UserError(_no_node(node_pattern, ports))
        matched = False
        for node in nodes:
            names = fnmatch.filter(ports[node], port_pattern or "*")
            matched = matched or bool(names)
            chosen.setdefault(node, set()).update(names)
        if not matched:
            raise UserError(_no_port(nodes, port_pattern, ports))
    return [
        Tap(node, tuple(port for port in ports[node] if port in chosen[node]))
        for node in ports
        if chosen.get(node)
    ]


def _no_node(name: str, ports: Mapping[str, Sequence[str]]) -> str:
    if name in ("all", "none"):
        return f"capture selection: {name!r} stands alone, not in a list"
    hint = question(name, ports, otherwise=f"the nodes are {_listed(ports)}", most=3)
    return f"capture selection: there is no node {name!r}; {hint}"


def _no_port(nodes: Sequence[str], name: str, ports: Mapping[str, Sequence[str]]) -> str:
    node = nodes[0]
    return f"capture selection: {node} has no port {name!r}; its ports are {_listed(ports[node])}"


def _listed(names: Mapping[str, object] | Sequence[str], most: int = 24) -> str:
    shown = list(names)
    rest = f" and {len(shown) - most} more" if len(shown) > most else ""
    return (", ".join(shown[:most]) or "none") + rest


def describe(lab: str, dilation: float) -> str:
    """The comment in a capture file: whose it is, and how its times relate to fabric time."""
    if dilation == 1:
        return f"uetemu lab {lab}, dilation 1: times are fabric time"
    units = ((1_000_000, "s"), (1000, "ms"), (1, "us"))
    size, unit = next((row for row in units if dilation >= row[0]), units[-1])
    return (
        f"uetemu lab {lab}, dilation {dilation:g}: times are those of the wall clock, "
        f"1 us of fabric time = {dilation / size:g} {unit} in this capture"
    )


def parse_snaplen(text: str) -> int:
    """``headers``, ``full`` or a number of octets."""
    named = {"headers": SNAPLEN_HEADERS, "full": SNAPLEN_FULL}
    if text in named:
        return named[text]
    if not text.isdecimal() or not 14 <= int(text) <= SNAPLEN_FULL:
        raise UserError(
            f"snap length {text!r} is none: write headers ({SNAPLEN_HEADERS} octets), full, "
            f"or a number of octets from 14 to {SNAPLEN_FULL}"
        )
    return int(text)


def buffer_mib(ports: int) -> int:
    """Kernel buffer of each port (MiB) when ``ports`` ports are captured together."""
    return max(2, min(BUFFER_PORT_MIB, BUFFER_TOTAL_MIB // max(1, ports)))


def salvage(folder: Path, comment: str) -> Path | None:
    """Make ``capture.pcapng`` from the parts that a killed runner left in ``folder``, if any."""
    parts = folder / _PARTS
    if not parts.is_dir():
        return None
    output = folder / "capture.pcapng"
    if nanosecond_pcaps := sorted(parts.glob("*.pcap")):
        join_pcap([(path.stem, path) for path in nanosecond_pcaps], output, comment)
    else:
        join(sorted(parts.glob("*.pcapng")), output, comment)
    shutil.rmtree(parts)
    return output


class Capture:
    """Sniffers on ``taps``, joined into ``folder/capture.pcapng`` when they stop.

    While they run, their files stand in ``folder/capture.parts``; :func:`salvage` joins what a
    killed runner left there.
    """

    def __init__(
        self,
        taps: Sequence[Tap],
        *,
        namespace: Callable[[str], str],
        folder: Path,
        snaplen: int = SNAPLEN_HEADERS,
        comment: str = "",
    ) -> None:
        """``namespace`` gives the name in /run/netns of a node's network namespace."""
        self.taps = tuple(taps)
        self.output = folder / "capture.pcapng"
        self._parts = folder / _PARTS
        self._namespace = namespace
        self._snaplen = snaplen
        self._comment = comment
        self.sniffers: list[tuple[str, Sniffer]] = []

    def start(self, timeout_s: float = 20.0) -> None:
        """Return when every chosen port is being captured; :class:`UserError` if one is not."""
        if not self.taps:
            return
        if shutil.which("dumpcap") is None and shutil.which("tcpdump") is None:
            raise UserError(
                "capturing needs dumpcap (Debian package tshark) or tcpdump: install one of them"
            )
        try:
            self._parts.mkdir(parents=True)
        except FileExistsError:
            raise UserError(
                f"{self._parts} holds parts of an earlier capture: use another folder or remove it"
            ) from None
        try:
            for tap in self.taps:
                self._start_tap(tap)
            for what, sniffer in self.sniffers:
                try:
                    sniffer.wait_ready(timeout_s)
                except UserError as error:
                    raise UserError(f"{what}: {error}") from None
        except BaseException:
            self.abort()
            shutil.rmtree(self._parts, ignore_errors=True)
            raise

    def _start_tap(self, tap: Tap) -> None:
        buffer = buffer_mib(sum(len(tap.ports) for tap in self.taps))
        namespace = self._namespace(tap.node)
        if shutil.which("dumpcap") is not None:
            dumpcap = Dumpcap(
                tap.node,
                tap.ports,
                namespace=namespace,
                output=str(self._parts / f"{tap.node}.pcapng"),
                snaplen=self._snaplen,
                buffer_mib=buffer,
                comment=self._comment,
            )
            self.sniffers.append((str(tap), dumpcap))
            return
        for port in tap.ports:
            tcpdump = Tcpdump(
                tap.node,
                port,
                namespace=namespace,
                output=str(self._parts / f"{tap.node}:{port}.pcap"),
                snaplen=self._snaplen,
                buffer_mib=buffer,
            )
            self.sniffers.append((f"{tap.node}:{port}", tcpdump))

    def stop(self) -> CaptureRecord:
        """End the capture once every frame that has passed until now is in it, and join it."""
        now_ns = time.monotonic_ns()
        errors: list[str] = []
        warnings: list[str] = []
        counts: list[PortCount] = []
        dead = [sniffer for _, sniffer in self.sniffers if not sniffer.running]
        for what, sniffer in self.sniffers:
            if sniffer in dead:
                errors.append(
                    f"the capture of {what} ended before the run did and is incomplete: "
                    f"{sniffer.complaint()}"
                )
        for what, sniffer in self.sniffers:
            if not sniffer.drain(now_ns):
                warnings.append(f"the capture of {what} was cut off while frames still passed")
        for _, sniffer in self.sniffers:
            sniffer.interrupt()
        for what, sniffer in self.sniffers:
            status = sniffer.wait()
            counts += sniffer.counts()
            if status and sniffer not in dead:
                errors.append(f"the capture of {what} did not end well: {sniffer.complaint()}")
            sniffer.close()
        warnings += [
            f"the capture lacks {count.dropped} frames of {count.port} that it could not write "
            "in time; capture fewer ports or raise the dilation"
            for count in counts
            if count.dropped
        ]
        path: Path | None = None
        if self.sniffers:
            try:
                path = salvage(self.output.parent, self._comment)
            except UserError as error:
                errors.append(str(error))
        self.sniffers.clear()
        return CaptureRecord(
            path=path, ports=tuple(counts), errors=tuple(errors), warnings=tuple(warnings)
        )

    def abort(self) -> None:
        """Kill the sniffers and remove their files; does nothing after :meth:`stop`."""
        if self.sniffers:
            for _, sniffer in self.sniffers:
                sniffer.kill()
            self.sniffers.clear()
            shutil.rmtree(self._parts, ignore_errors=True)

    def __enter__(self) -> Capture:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave no sniffer behind; call :meth:`stop` inside the block for the record."""
        if self.sniffers:
            self.stop()
