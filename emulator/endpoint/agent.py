"""The process of one GPU: its NIC, its transport, its schedule, in one loop.

::

    control (runner) ---+
    mailbox (NVLink) ---+--> executor --post--> transport --transmit--> nic --> eth0
    eth0 --> nic --receive--> transport --completions--> executor

One turn of the loop does a bounded amount of each, so that neither a long reduction nor a flood
of frames starves the rest; when a turn found nothing to do the loop sleeps until the next
deadline or the next descriptor that speaks.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import random
import select
import signal
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from emulator.endpoint.agent_spec import (
    Abort,
    AgentSpec,
    AgentStart,
    AtBarrier,
    Close,
    Closed,
    Counters,
    Failed,
    Finished,
    Loaded,
    Pass,
    ReadCounters,
    Ready,
    Renew,
    Renewed,
    Run,
    ScheduleLoad,
)
from emulator.endpoint.clock import Clock
from emulator.endpoint.counting import add, of_the_past
from emulator.endpoint.loop_record import LoopRecord
from emulator.endpoint.nic.lanes import lanes, per_fep
from emulator.endpoint.nic.multi_port_nic import MultiPortNic
from emulator.endpoint.nic.packet_nic import Nic
from emulator.endpoint.operations.executor import MEMORY_KEY, Executor
from emulator.endpoint.operations.gpu_memory import GpuMemory, Layout, memory_path
from emulator.endpoint.operations.nvlink import RETRY_HOST_NS, NvLink, mailbox_path
from emulator.endpoint.operations.schedule_program import ScheduleProgram
from emulator.errors import UserError
from emulator.kernel.icmp_guard import guard_interface
from uet.transport import Transport

_RECEIVE_BATCH = 32
#: A busy loop looks at its other descriptors after this many turns.
_TURNS_BETWEEN_LOOKS = 8
#: While data cannot leave, the transport's timers run this often at most (fabric time).
_BLOCKED_LOOK_NS = 500

_CLONE_NEWNET = 0x4000_0000
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_TIMERSLACK = 1, 15, 29
_libc = ctypes.CDLL(None, use_errno=True)


class Agent:
    """One rank's loop.  Construct it inside the namespace."""

    def __init__(self, start_message: AgentStart, control: Connection) -> None:
        spec = start_message.spec
        self._spec, self._control, self._clock = spec, control, start_message.clock
        self._memory = GpuMemory.attach(memory_path(start_message.lab, spec.node))
        self._nvlink: NvLink | None = None
        if spec.scale_up is not None:
            mailboxes = {
                rank: mailbox_path(start_message.lab, node)
                for rank, node in spec.scale_up_peers.items()
            }
            own = mailbox_path(start_message.lab, spec.node)
            self._nvlink = NvLink(spec.rank, own, mailboxes, spec.scale_up)
        for port in spec.ports:
            self._silence = guard_interface(port.interface, spec.frames)
        self._nic = open_nic(spec, start_message.clock)
        self._past: dict[str, int] = {}  # counters of the transports before this one
        self._past_of_feps: dict[str, dict[str, int]] = {}
        self._transport = self._new_transport(dict(spec.transport_config), spec.seed)
        self._executor = Executor(
            spec.rank,
            spec.node,
            self._transport,
            self._memory,
            spec.peers,
            nvlink=self._nvlink,
            scale_up_memories={
                rank: GpuMemory.attach(memory_path(start_message.lab, node))
                for rank, node in spec.scale_up_peers.items()
                if self._nvlink is not None
            },
            header_bits=spec.header_bits,
        )
        self._run: Run | None = None
        self._close: Close | None = None
        self._record = LoopRecord()
        self._cpu_at_start = 0
        self._readers_but_nic = [control.fileno(), *self._nic.events]
        if self._nvlink is not None:
            self._readers_but_nic.append(self._nvlink.fileno())
        self._nic_handles = frozenset((*self._nic.handles, *self._nic.events))
        self._readers = [*self._readers_but_nic, *self._nic.handles]

    def _new_transport(self, config: dict[str, object], seed: int) -> Transport:
        transport = make_transport(self._spec.transport, config, seed)
        if isinstance(self._nic, MultiPortNic):
            transport.use_ports(self._nic.usable)
        self._lanes = lanes(transport, self._nic)
        transport.register(self._memory.view(), key=MEMORY_KEY)
        return transport

    def _renew(self, life: int) -> None:
        add(self._past, of_the_past(self._transport.counters()))
        for layer, counters in per_fep(self._transport).items():
            add(self._past_of_feps.setdefault(layer, {}), of_the_past(counters))
        seed = random.Random(f"{self._spec.seed} life {life}").getrandbits(63)
        config = {**self._spec.transport_config, "life": life}
        self._transport = self._new_transport(config, seed)
        self._executor.use(self._transport)

    def serve(self) -> None:
        """Run until the runner closes the connection or goes away (``EOFError``)."""
        self._control.send(Ready(os.getpid(), self._silence))
        clock, record = self._clock, self._record
        timer: int | None = None
        turns = 0
        while True:
            now = clock.now()
            if timer is not None and now > timer:
                record.slip.add(now - timer)
            busy = self._turn(now)
            after = clock.now()
            if busy:
                record.turn.add(after - now)
                timer = None
                turns += 1
                if turns % _TURNS_BETWEEN_LOOKS == 0:
                    self._look(0.0)
            else:
                # First what is full, then the transport's time, which counts if nothing is: frames
                # leave meanwhile, and the other way round it might wait for neither.
                blocked = self._nic.blocked
                timer = self._next_timer(after)
                wake = _earlier(timer, self._nic.next_deadline(after))
                timeout = None if wake is None else clock.host_seconds(max(0, wake - after))
                self._look(timeout, blocked)

    def _turn(self, now: int) -> bool:
        """A bounded share of everything; true when there was something to do."""
        executor, transport = self._executor, self._transport
        received = False
        for endpoint, nic in self._lanes:
            frames = nic.receive(now, _RECEIVE_BATCH)
            if frames:
                received = True
                if nic.lateness > 0:
                    self._record.slip.add(nic.lateness)
                endpoint.receive(frames, now)
        completions = transport.completions()
        if completions:
            executor.feed(completions, now)
        busy = False
        if executor.running:
            busy = executor.advance(now)
            for name in executor.barriers_reached():
                self._control.send(AtBarrier(self._number, name))
            if executor.finished:
                self._finish()
        elif self._run is not None and now >= self._run.start_at:
            executor.start(self._run.execution, self._run.start_at, self._run.deadline)
            self._record.reset()
            self._cpu_at_start = time.process_time_ns()
            busy = True
        for endpoint, nic in self._lanes:
            out = endpoint.transmit(now, nic.room())
            if out or nic.backlog:
                sent = nic.send(out)
                busy = busy or sent > 0
        # What ended with a timer (retries that are over) may send no frame: nothing else would wake
        # the loop for it before the execution's deadline.
        expired = transport.completions()
        if expired:
            executor.feed(expired, now)
        if self._nvlink is not None and self._nvlink.backlog:
            self._nvlink.flush()
        if self._close is not None and (transport.closed or now >= self._close.deadline):
            self._control.send(Closed(transport.closed))
            self._close = None
        return busy or received or bool(completions) or bool(expired)

    @property
    def _number(self) -> int:
        return self._run.execution if self._run is not None else 0

    def _next_timer(self, now: int) -> int | None:
        """Return when the loop must turn again whatever the NIC holds (ns), or ``None``."""
        deadlines: list[int | None] = []
        for endpoint, nic in self._lanes:
            if nic.room():
                deadlines.append(endpoint.next_deadline())
            elif nic.by_class:
                # what it has to send may be data; an answer that waits for a timer is not held up
                deadlines.append(_no_sooner(endpoint.next_deadline(), now + _BLOCKED_LOOK_NS))
        if self._executor.running:
            deadlines.append(self._executor.next_deadline())
        elif self._run is not None:
            deadlines.append(self._run.start_at)
        if self._nvlink is not None and self._nvlink.backlog:
            deadlines.append(now + self._clock.fabric_duration(RETRY_HOST_NS))
        if self._close is not None:
            deadlines.append(self._close.deadline)
        return min((when for when in deadlines if when is not None), default=None)

    def _look(self, timeout: float | None, writers: Sequence[int] = ()) -> None:
        """Wait at most ``timeout`` seconds for a descriptor, and serve control and mailbox.

        ``writers`` are those that are waited for until they take frames again.
        """
        nic = self._nic
        readers = self._readers if nic.pollable else self._readers_but_nic
        readable, _, _ = select.select(readers, writers, (), timeout)
        for descriptor in readable:
            if descriptor == self._control.fileno():
                self._handle(self._control.recv())
            elif descriptor in self._nic_handles:
                nic.acknowledge(descriptor)
                if isinstance(nic, MultiPortNic) and descriptor in nic.events:
                    self._transport.use_ports(nic.usable)
            elif self._nvlink is not None:
                self._executor.notice(self._nvlink.notices())

    def _handle(self, message: object) -> None:
        """Execute a message of the runner."""
        match message:
            case ScheduleLoad(schedule=schedule, layouts=layouts):
                program = ScheduleProgram(
                    schedule,
                    {rank: Layout(buffers) for rank, buffers in layouts.items()},
                    fabric=self._spec.peers,
                    scale_up=self._spec.scale_up_peers if self._nvlink is not None else (),
                )
                self._executor.load(program)
                gc.collect()
                self._control.send(Loaded())
            case Renew(life=life):
                self._renew(life)
                self._control.send(Renewed())
            case Run():
                self._run = message
            case Abort(reason=reason):
                if self._executor.running:
                    self._executor.fail("aborted", reason)
                elif self._run is not None:  # it had not started yet
                    self._executor.start(self._run.execution, self._clock.now(), 0)
                    self._executor.fail("aborted", reason)
            case Pass(execution=execution, name=name):
                self._executor.pass_barrier(execution, name, self._clock.now())
            case ReadCounters():
                self._control.send(Counters(self._counters()))
            case Close():
                self._close = message
                self._transport.close()
            case _:
                raise TypeError(f"the runner sent {message!r}, which no agent understands")

    def _finish(self) -> None:
        cpu_ns = time.process_time_ns() - self._cpu_at_start
        result = self._executor.take_result(cpu_ns, self._record.counters())
        self._run = None
        self._control.send(Finished(result))

    def _counters(self) -> dict[str, dict[str, int]]:
        transport = dict(self._past)
        add(transport, self._transport.counters())
        layers = {
            "transport": transport,
            "nic": self._nic.counters(),
            "executor": {"stale_arrivals": self._executor.stale_arrivals},
            "loop": {**self._record.counters(), "cpu_ns": time.process_time_ns()},
        }
        for layer, counters in per_fep(self._transport).items():
            layers[layer] = dict(self._past_of_feps.get(layer, {}))
            add(layers[layer], counters)
        if self._nvlink is not None:
            layers["scale_up"] = self._nvlink.counters()
        return layers

    def leave(self) -> None:
        """Give up the NIC and the mailbox."""
        self._nic.close()
        if self._nvlink is not None:
            self._nvlink.close()


def open_nic(spec: AgentSpec, clock: Clock) -> Nic | MultiPortNic:
    """The NIC of ``spec`` in the current network namespace."""
    settings: dict[str, Any] = {
        "frames": spec.frames,
        "frame_octets": spec.frame_octets or spec.mtu + 14,
        "slots": spec.receive_slots,
        "queue_frames": spec.send_queue_frames,
        "by_class": spec.send_by_class,
    }
    if len(spec.ports) > 1:
        return MultiPortNic(spec.ports, clock, fep_per_port=spec.fep_per_port, **settings)
    (port,) = spec.ports
    return Nic(port.interface, clock, path_delays=port.path_delays, **settings)


def _earlier(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _no_sooner(deadline: int | None, earliest: int) -> int | None:
    return None if deadline is None else max(deadline, earliest)


def make_transport(reference: str, config: dict[str, object], seed: int) -> Transport:
    """Call the function ``module:function`` with ``config`` and ``seed``."""
    module, _, name = reference.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as missing:
        raise UserError(
            f"the transport {reference!r} cannot be loaded ({missing}); name it module:function"
        ) from missing
    transport: Transport = factory(**config, seed=seed)
    return transport


def live(start_message: AgentStart, control: Connection) -> int:
    """The whole life of an agent process after the fork; returns its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the runner's to handle
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        return 1  # the fork server died before we requested to die with it
    _libc.prctl(_PR_SET_NAME, start_message.spec.node.encode()[:15], 0, 0, 0)
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # 50 us of slack would be 50 us of slip
    gc.disable()  # collected between executions instead, see Load
    agent: Agent | None = None
    try:
        if start_message.spec.netns is not None:
            enter_namespace(start_message.spec.netns)
        agent = Agent(start_message, control)
        agent.serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 1  # the runner is gone
    except Exception as failure:  # noqa: BLE001  # whatever it is, the runner must be notified
        try:
            control.send(_failed(failure))
        except OSError:
            return 1
        return 1
    finally:
        if agent is not None:
            agent.leave()
    return 0


def _failed(failure: Exception) -> Failed:
    by_user = isinstance(failure, (UserError, ValueError, OSError))
    if isinstance(failure, OSError) and failure.strerror:
        where = f" ({failure.filename})" if failure.filename else ""
        sentence = f"{failure.strerror}{where}"
    else:
        sentence = str(failure) if by_user else f"{type(failure).__name__}: {failure}"
    return Failed(sentence, traceback.format_exc(), by_user)


def enter_namespace(path: str) -> None:
    """Move this process into the network namespace at ``path``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"cannot enter {path}: {os.strerror(code)}")
    finally:
        os.close(descriptor)
