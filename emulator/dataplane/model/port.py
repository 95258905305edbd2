"""One port of a modelled switch: ``asic.bpf.c`` in Python, for a virtual clock.

Both functions do what the program does to a transport's frame, in its order and with its draws, and
count in the same tables.  ``tests/emulator/run/test_modelled_runs.py`` holds them to the program.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from emulator.dataplane.model.packet import (
    ETHERNET,
    ModelPacket,
    corrupted,
    is_transport,
    marked,
    parse,
    plain_payload,
    traffic_of,
    trimmed,
)
from emulator.dataplane.model.port_counts import (
    CLASS_WORDS,
    CLASSES_AT,
    QUEUE_WORDS,
    QUEUES_AT,
    SwitchCounts,
)
from emulator.dataplane.model.program import ModelProgram, ModelRules, PauseLimits
from emulator.dataplane.switch.balancing import (
    FIRST_IN_PYTHON,
    Arrival,
    Balancing,
    chosen_in_python,
)
from emulator.dataplane.switch.bpf.layout import (
    ALPHA_SHIFT,
    FAULTS_ARRIVALS,
    FAULTS_DEPARTURES,
    FLOWLET,
    FLOWLETS,
    PAUSE_STATE,
    POOL,
    PORT_STATE_BYTES,
    SLOPE_SHIFT,
    VIRTUAL_PORT,
    WITHOUT_CARRIER,
    DropReason,
    Queue,
    TrafficClass,
)
from emulator.dataplane.switch.virtual_state import SharedPool
from emulator.words import mixed, unsigned, word_of
from topologies.ethernet import FCS_OCTETS, FRAMING_OCTETS, SHORTEST_OCTETS

STREAM_MARK: Final = 1
STREAM_FAULT: Final = 2
STREAM_HASH: Final = 3
_HALF: Final = 0xFFFF_FFFF


def draw(seed: int, stream: int, number: int) -> int:
    """Return draw ``number`` of ``stream``, 32 bits: a function of these alone (``random.h``)."""
    return int(_draw(word_of(seed), stream, number))


def _draw(seed: i64, stream: i64, number: i64) -> i64:
    return mixed(mixed(seed + stream) + number) >> 32 & _HALF


_WORD: Final = 8
_PORT_WORDS: Final = PORT_STATE_BYTES // _WORD
_MARK_DRAWS: Final = 4
_FAULT_DRAWS: Final = 5
_HASH_DRAWS: Final = 6
_BURST: Final = 1 << 32  # of the first word: the lock is below
_MARKED: Final = 2
_TRIMMED: Final = 3
_CORRUPTED: Final = 4
_DUPLICATED: Final = 5
_REORDERED: Final = 6
_LOST: Final = 7
_DROPS: Final = 8
_VIRTUAL_WORDS: Final = VIRTUAL_PORT.size // _WORD
_OVERTAKES: Final = 3
_PAUSE_WORDS: Final = PAUSE_STATE.size // _WORD
_HELD: Final = 0
_DEEPEST: Final = 1
_HELD_IN_HEADROOM: Final = 5
_POOL_WORDS: Final = POOL.size // _WORD
_SIZE: Final = 0
_RESERVED: Final = 1
_HEADROOM: Final = 2
_USED: Final = 3
_MOST: Final = 4
_IN_HEADROOM: Final = 5
_MOST_IN_HEADROOM: Final = 6
_ALPHA_SHIFT: Final = int(ALPHA_SHIFT)
_FLOWLET_WORDS: Final = FLOWLET.size // _WORD
#: ``enum fault_stream`` of faults.h
_F_LOSS, _F_STATE, _F_BURST, _F_CORRUPTION, _F_DUPLICATION, _F_BIT, _F_REORDERING = range(7)
_FAULT_STREAMS = 16
_BIT_ERROR_SHIFT = 24
_FRAGMENT: Final = 0x3FFF
_TCP: Final = 6
_UDP: Final = 17
_FIRST: Final = 0
_TRIMMED_PASS: Final = 1
_DUPLICATE_PASS: Final = 2
_LOW: Final = int(Queue.LOW)
_OTHER: Final = int(TrafficClass.OTHER)
_FAULTS_DEPARTURES: Final = int(FAULTS_DEPARTURES)
_FLOW: Final = int(Balancing.FLOW)


class ModelPort:
    """Port ``index`` of a switch that works by ``program``."""

    def __init__(self, program: ModelProgram, index: int, switch: int) -> None:
        self._program, self.index = program, index
        self._tables = program.of_port(index)
        self._state = program.ports.mapped().cast("Q")
        self._at = index * _PORT_WORDS
        self._virtual = program.virtual_ports.mapped().cast("Q")
        self._depth_at = index * _VIRTUAL_WORDS
        self._counts, self._depths = program.port_counts(index), program.depths(index)
        #: what all ports of the switch count together
        self.of_switch: SwitchCounts = program.switch_counts(switch)
        self._flowlets = program.flowlets.mapped().cast("Q")
        self._holds = program.pause_states.mapped().cast("q")
        self._pools = program.virtual_pools.mapped().cast("Q")
        self._pool_at = switch * _POOL_WORDS

    @property
    def rules(self) -> ModelRules:
        """The port's settings."""
        return self._tables.rules or self._program.rules(self.index)

    # ------------------------------------------------------------------ arrival

    def arrive(self, frame: bytes) -> bytes | None:
        """Take ``frame`` as the port does on arrival; None if it goes no further."""
        rules = self.rules
        if not rules.strikes_arrivals:
            return frame
        faults = rules.faults
        packet = parse(frame)
        number = self._class_of(rules, packet)
        if faults.black_hole & FAULTS_ARRIVALS:
            self._count_swallowed(rules, number)
            self._swallow()
            return None
        struck, lost, _ = self._apply_faults(frame, packet, rules, number, shared=False)
        if lost:
            self._swallow()
            return None
        return struck

    def hash_of(self, frame: bytes) -> i64:
        """Return the hash, 32 bits, by which routes spread ``frame``; counts as one arrival.

        Methods that draw or take turns do so for each packet that arrives, routed or not.
        """
        rules = self.rules
        flow = _flow_hash(frame, rules)
        method = rules.balancing
        if method == _FLOW:
            return flow >> 32 & _HALF
        if method == Balancing.FLOWLET:
            return self._flowlet_hash(rules, flow)
        if method == Balancing.PACKET:
            at = self._at + _HASH_DRAWS
            number = self._state[at]
            self._state[at] = number + 1
            return _draw(rules.seed, STREAM_HASH, number)
        if method in (Balancing.ROUND_ROBIN, Balancing.LEAST_LOADED):
            route = self._program.route(rules.switch, frame[30:34])
            if route is not None and route.ports:
                hops = len(route.ports)
                turn = route.turn % hops
                route.turn += 1
                if method == Balancing.LEAST_LOADED:
                    turn = self._least_loaded(route.ports, turn)
                return ((2 * turn + 1) << 31) // hops
        if method >= FIRST_IN_PYTHON:
            at = self._at + _HASH_DRAWS
            number = self._state[at]
            self._state[at] = number + 1
            now = int(self.of_switch.now)
            arrival = Arrival(unsigned(flow), number, unsigned(rules.seed), now)
            return chosen_in_python(method, arrival)
        return flow >> 32 & _HALF

    @property
    def origin(self) -> int:
        """Return the port's index if frames that come in by it count in its lossless buffer."""
        return self.index if self._limits() is not None else 0

    def _limits(self) -> PauseLimits | None:
        """Return what the port may hold; None if it does not pause."""
        tables = self._tables
        return tables.limits if tables.limits_known else self._program.pausing(self.index)

    def _flowlet_hash(self, rules: ModelRules, flow: i64) -> i64:
        place = rules.switch * FLOWLETS + (flow & FLOWLETS - 1)
        at, words = place * _FLOWLET_WORDS, self._flowlets
        now = self.of_switch.now
        if now - words[at] > rules.flowlet_gap:
            words[at + 1] += 1
        words[at] = now
        return mixed(flow + words[at + 1]) >> 32 & _HALF

    def _least_loaded(self, ports: tuple[int, ...], first: int) -> int:
        best, chosen = (1 << 62) - 1, first
        self._program.write_counts()
        for place in range(len(ports)):
            hop = (first + place) % len(ports)
            at = ports[hop] * _VIRTUAL_WORDS
            depth = sum(self._virtual[at : at + len(Queue)])
            if depth < best:
                best, chosen = depth, hop
        return chosen

    # ------------------------------------------------------------------ departure

    def leave(self, frame: bytes, origin: int, out: list[bytes], turn: int = _FIRST) -> None:  # noqa: C901  the way of a packet, without calls
        """Append to ``out`` what leaves by this port of ``frame``, which came in by ``origin``.

        ``origin`` is the index of a port that pauses, 0 of any other.
        """
        rules = self._tables.rules or self._program.rules(self.index)
        if not rules.rate:
            out.append(frame)
            return
        traffic = traffic_of(frame)
        number = rules.class_of[traffic] if traffic >= 0 else _OTHER
        faults = rules.faults
        if faults.black_hole & _FAULTS_DEPARTURES:
            self._count_swallowed(rules, number)
            self._swallow()
            return
        of_class = rules.classes[number]
        octets = len(frame) + FRAMING_OCTETS
        if octets < SHORTEST_OCTETS:
            octets = SHORTEST_OCTETS
        queue = of_class.queue
        limits = self._limits() if queue == _LOW else None
        if limits is not None:
            if limits.dropping:
                self._count_drop(number, DropReason.WATCHDOG)
                self._swallow()
                return
            if not self._fits(origin, octets):
                self._count_drop(number, DropReason.HEADROOM)
                self._swallow()
                return
        counts, depths = self._counts, self._depths
        depth = int(depths.of(queue))
        counts.find(queue, depth, rules.bin_shift)
        deeper = depth + octets
        shared = self._shared(of_class.alpha, depth, deeper) if of_class.alpha else 0
        if (
            of_class.trim_above
            and (deeper > of_class.trim_above or shared < 0)
            and turn != _TRIMMED_PASS
            and (packet := parse(frame)).payload > rules.trim_payload
        ):
            self._count(number, _TRIMMED)
            cut = trimmed(frame, packet, rules.trim_payload, rules.trimmed_dscp)
            self.leave(cut, origin, out, _TRIMMED_PASS)
            return
        if of_class.limit and deeper > of_class.limit:
            self._count_drop(number, DropReason.TAIL)
            self._swallow()
            return
        if shared < 0:
            self._count_drop(number, DropReason.POOL)
            self._swallow()
            return
        if (
            of_class.mark_all
            and depth > of_class.mark_from
            and traffic & 3 in (1, 2)
            and (depth >= of_class.mark_all or self._draws_mark(rules, depth, number))
        ):
            self._count(number, _MARKED)
            frame = marked(frame, parse(frame))
        depths.put(queue, deeper)
        counts.take(queue, deeper, number, octets)
        if shared:
            self._take(shared)
        if limits is not None:
            self._hold(origin, octets)
        if faults.enabled and turn != _DUPLICATE_PASS:
            struck, lost, twice = self._apply_faults(
                frame, parse(frame), rules, number, shared=True
            )
            if lost:
                self._count(number, _LOST, octets)
                depths.take_off(queue, octets)
                if of_class.alpha:
                    self._pools[self._pool_at + _USED] -= self._beyond(deeper, depth)
                if limits is not None:
                    self._give_back(origin, octets)
                self._swallow()
                return
            frame = struck
            if twice:
                self.leave(frame, origin, out, _DUPLICATE_PASS)
        self.of_switch.passed += 1
        out.append(frame)

    def _draws_mark(self, rules: ModelRules, depth: int, number: int) -> bool:
        of_class = rules.classes[number]
        above: i64 = depth - of_class.mark_from
        steep = above * of_class.mark_slope  # less than 2^48, as all are marked from Kmax on
        at = self._at + _MARK_DRAWS
        drawn = self._state[at]
        self._state[at] = drawn + 1
        return _draw(rules.seed, STREAM_MARK, drawn) < steep >> SLOPE_SHIFT

    # ------------------------------------------------------------------ faults

    def _apply_faults(
        self, frame: bytes, packet: ModelPacket, rules: ModelRules, number: int, *, shared: bool
    ) -> tuple[bytes, bool, bool]:
        """Return the frame, whether it is lost, and whether it comes twice.

        ``shared``: the engine puts frames ahead that the port counts as overtaking.
        """
        faults, seed, state = rules.faults, rules.seed, self._state
        counters = self._at + CLASSES_AT + number * CLASS_WORDS
        at = self._at + _FAULT_DRAWS
        drawn = state[at]
        state[at] = drawn + 1
        first = drawn * _FAULT_STREAMS
        in_burst = self._in_burst(rules, first)
        if in_burst and _draw(seed, STREAM_FAULT, first + _F_BURST) < faults.loss_in_bad:
            state[counters + _DROPS + DropReason.BURST] += 1
            return frame, True, False
        octets: i64 = len(frame) + FCS_OCTETS
        chance = faults.loss + (octets * faults.bit_errors >> _BIT_ERROR_SHIFT)
        if _draw(seed, STREAM_FAULT, first + _F_LOSS) < chance:
            state[counters + _DROPS + DropReason.LOSS] += 1
            return frame, True, False
        if _draw(seed, STREAM_FAULT, first + _F_CORRUPTION) < faults.corruption:
            changed = corrupted(frame, packet, _draw(seed, STREAM_FAULT, first + _F_BIT))
            if changed is not None and not is_transport(changed, rules.native_protocol):
                state[counters + _DROPS + DropReason.LOSS] += 1
                return frame, True, False
            if changed is not None:
                frame = changed
                state[counters + _CORRUPTED] += 1
        if _draw(seed, STREAM_FAULT, first + _F_REORDERING) < faults.reordering:
            self._overtake(frame, rules, number, shared=shared)
        if _draw(seed, STREAM_FAULT, first + _F_DUPLICATION) < faults.duplication:
            state[counters + _DUPLICATED] += 1
            return frame, False, True
        return frame, False, False

    def _in_burst(self, rules: ModelRules, first: int) -> bool:
        faults, state, at = rules.faults, self._state, self._at
        chance = _draw(rules.seed, STREAM_FAULT, first + _F_STATE)
        if state[at]:
            if chance < faults.bad_to_good:
                state[at] = 0
        elif chance < faults.good_to_bad:
            state[at] = _BURST
        return bool(state[at])

    def _overtake(self, frame: bytes, rules: ModelRules, number: int, *, shared: bool) -> None:
        if rules.classes[number].queue != _LOW:
            return
        octets = max(SHORTEST_OCTETS, len(frame) + FRAMING_OCTETS)
        self._program.write_counts()
        if self._state[self._at + QUEUES_AT + _LOW * QUEUE_WORDS] <= octets:
            return
        if shared:
            self._virtual[self._depth_at + _OVERTAKES] += 1
        self._state[self._at + CLASSES_AT + number * CLASS_WORDS + _REORDERED] += 1

    # ------------------------------------------------------------------ counts

    @staticmethod
    def _class_of(rules: ModelRules, packet: ModelPacket) -> int:
        return rules.class_of[packet.traffic] if packet.version else _OTHER

    def _swallow(self) -> None:
        self.of_switch.dropped += 1

    def _count(self, number: int, word: int, more: int = 1) -> None:
        self._state[self._at + CLASSES_AT + number * CLASS_WORDS + word] += more

    def _count_drop(self, number: int, reason: DropReason) -> None:
        self._count(number, _DROPS + reason)

    def _count_swallowed(self, rules: ModelRules, number: int) -> None:
        unplugged = rules.faults.black_hole & WITHOUT_CARRIER
        self._count_drop(number, DropReason.LINK_DOWN if unplugged else DropReason.BLACK_HOLE)

    # ------------------------------------------------------------------ the pool (pool.h)

    def _beyond(self, deeper: int, depth: int) -> int:
        """Return how many octets more of the pool a queue takes if it is ``deeper``."""
        own: int = self._pools[self._pool_at + _RESERVED]
        return (deeper - own if deeper > own else 0) - (depth - own if depth > own else 0)

    def _shared(self, alpha: int, depth: int, deeper: int) -> int:
        """Return what the pool gives a queue to be ``deeper``, -1 if it has no room."""
        pools, at = self._pools, self._pool_at
        own: int = pools[at + _RESERVED]
        free: i64 = max(0, pools[at + _SIZE] - pools[at + _USED])
        more = self._beyond(deeper, depth)
        return -1 if more > free or deeper > own + (free * alpha >> _ALPHA_SHIFT) else more

    def _take(self, octets: int) -> None:
        pools, at = self._pools, self._pool_at
        pools[at + _USED] += octets
        if pools[at + _USED] > pools[at + _MOST]:
            pools[at + _MOST] = pools[at + _USED]

    def _below_xoff(self, limits: PauseLimits, at: int, octets: int) -> int:
        """Return what the pool gives the buffer at ``at`` for ``octets``; -1: they are above XOFF.

        What is above goes into the headroom.
        """
        pools, of = self._pools, self._pool_at
        held: int = self._holds[at + _HELD] - self._holds[at + _HELD_IN_HEADROOM]
        free: i64 = max(0, pools[of + _SIZE] - pools[of + _USED])
        more = max(0, held + octets - limits.xoff) - max(0, held - limits.xoff)
        above = held + octets > limits.xoff + (free * limits.alpha >> _ALPHA_SHIFT)
        return -1 if more > free or above else more

    def _fits(self, origin: int, octets: int) -> bool:
        limits = self._program.pausing(origin) if origin else None
        if limits is None:
            return True
        at = origin * _PAUSE_WORDS
        if not limits.alpha:
            return self._holds[at + _HELD] + octets <= limits.ceiling
        if self._below_xoff(limits, at, octets) >= 0:
            return True
        pools, of = self._pools, self._pool_at
        return (
            self._holds[at + _HELD_IN_HEADROOM] + octets <= limits.ceiling - limits.xoff
            and pools[of + _IN_HEADROOM] + octets <= pools[of + _HEADROOM]
        )

    def _hold(self, origin: int, octets: int) -> None:
        limits = self._program.pausing(origin) if origin else None
        if limits is None:
            return
        at = origin * _PAUSE_WORDS
        if limits.alpha:
            self._hold_in_pool(limits, at, octets)
        self._holds[at + _HELD] += octets
        if self._holds[at + _HELD] > self._holds[at + _DEEPEST]:
            self._holds[at + _DEEPEST] = self._holds[at + _HELD]

    def _hold_in_pool(self, limits: PauseLimits, at: int, octets: int) -> None:
        more = self._below_xoff(limits, at, octets)
        if more >= 0:
            self._take(more)
            return
        pools, of = self._pools, self._pool_at
        self._holds[at + _HELD_IN_HEADROOM] += octets
        pools[of + _IN_HEADROOM] += octets
        if pools[of + _IN_HEADROOM] > pools[of + _MOST_IN_HEADROOM]:
            pools[of + _MOST_IN_HEADROOM] = pools[of + _IN_HEADROOM]

    def _give_back(self, origin: int, octets: int) -> None:
        limits = self._program.pausing(origin) if origin else None
        if limits is None:
            return
        at = origin * _PAUSE_WORDS
        if limits.alpha:
            SharedPool(self._pools, self._pool_at).leave_buffer(
                self._holds, at, limits.xoff, octets
            )
        self._holds[at + _HELD] -= octets


def _half(frame: bytes, at: i64) -> i64:
    """Return the 32 bits at ``at``, as a little-endian machine loads them."""
    first: i64 = frame[at]
    second: i64 = frame[at + 1]
    third: i64 = frame[at + 2]
    fourth: i64 = frame[at + 3]
    return first | second << 8 | third << 16 | fourth << 24


def _flow_hash(frame: bytes, rules: ModelRules) -> i64:
    """64 bits of addresses, protocol and the first four octets of payload (``flow_of``)."""
    payload = plain_payload(frame)
    number = rules.switch_seed
    ports: i64 = 0
    if payload >= 0:
        number = mixed(number ^ _half(frame, 26) ^ _half(frame, 30) << 32)
        protocol: i64 = frame[23]
        if (
            payload >= 4
            and not (frame[20] << 8 | frame[21]) & _FRAGMENT
            and protocol in (_UDP, _TCP, rules.native_protocol)
        ):
            ports = _half(frame, 34)
        return mixed(number ^ (protocol << 32 | ports))
    packet = parse(frame)
    if packet.version == 4:
        number = mixed(number ^ _half(frame, 26) ^ _half(frame, 30) << 32)
        protocol = frame[23]
        has_ports = not (frame[20] << 8 | frame[21]) & _FRAGMENT
    else:
        for at in range(ETHERNET + 8, ETHERNET + 40, 8):
            number = mixed(number ^ _half(frame, at) ^ _half(frame, at + 4) << 32)
        protocol, has_ports = frame[20], True
    if has_ports and packet.payload >= 4 and protocol in (_UDP, _TCP, rules.native_protocol):
        at = ETHERNET + packet.header
        ports = _half(frame, at)
    return mixed(number ^ (protocol << 32 | ports))
