"""The grammar of faults: what goes wrong, where, and when.

::

    t=2ms link rail0:up1 down; t=9ms up
    t=1ms link rail0:up0 loss=1% corrupt=0.1%; t=5ms heal; t=6ms link rail0:up1 rate=100Gbps
    t=2ms link rail0:up0 flap every=1ms for=5ms
    t=3ms switch spine0 down; t=8ms up
    t=200us gpu h1g0 dead; t=400us server h2 dead
    t=20us scale-up h0g1 links=10; t=60us heal

Clauses are parted by semicolons.  ``t=`` is fabric time after the common start of an iteration
(``uetemu inject`` strikes at once and takes none).  A clause that names no element means that of
the one before.

=====================  ===========================================================================
``down``, ``up``       the cable, or all cables of a switch or NIC, lose carrier at both ends
``flap every= for=``   down for the first half of each period and up for the second, and up at last
``dead``               a GPU's process ends: its endpoint neither sends nor answers any more, and
                       its NIC keeps its carrier; a server takes its GPUs and all carrier
``blackhole``          swallows everything, and both ends keep carrier; links only, as are the rest.
                       ``blackhole=out`` swallows only what the named port sends, ``blackhole=in``
                       only what it is sent
``rate=``              what is left of the link's rate, as in ``rate=100Gbps``; beside it
                       ``thresholds=scaled`` has the port mark, trim and drop as early as a port of
                       that rate would
``loss=``              chance of each frame to be lost, as in ``loss=1%``
``ber=``               chance of each bit to be wrong, as in ``ber=1e-7``: such a frame is lost
``corrupt=``           chance of each frame to have a bit inverted
``links=``             how many links to its scale-up switch a GPU has left, as in ``links=10``;
                       ``rate=`` what is left of its rate, of a mesh over all links alike.  Copies
                       go on with that, and wait while what they go over is ``down``
``heal``               the end of all silent faults of the link, ``blackhole`` and its like, or of
                       a scale-up network's ``links=`` and ``rate=``
=====================  ===========================================================================

What is dead stays so until the end of the iteration.  A grammar of a few words needs no parser
generator: :func:`parse` splits and looks up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from emulator.dataplane.switch.bpf.layout import WHOLE
from emulator.dataplane.switch.port_faults import WAYS
from emulator.errors import UserError
from emulator.run.faults.condition import KINDS, SOUND, Condition, Element, element
from topologies.advice import meant
from topologies.model import SWITCH, Topology
from topologies.units import UnitError, format_rate, format_time, parse_rate, parse_time_ns

STATES = ("down", "up", "blackhole", "heal", "flap", "dead")
OF_LINKS = tuple(state for state in STATES if state != "dead")
BLACK_HOLES = ("blackhole", *(f"blackhole={way}" for way in WAYS))
SETTINGS = ("rate", "loss", "ber", "corrupt", "thresholds")
#: Of a scale-up network.
PACES = ("links", "rate")
SMALLEST_PACE = 1e-6
FLAPPING = ("every", "for")
MOST_FLAPS = 1000
#: Bit error ratios that can be drawn, and under which frames still arrive.
SMALLEST_BER, LARGEST_BER = 1e-16, 1e-4
_RATIO = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,9})?(?:[eE]-[0-9]{1,2})?")
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%")


@dataclass(frozen=True)
class Clause:
    """A clause of a fault; ``at_ns`` is None without a time.

    ``settings`` are those of the verb, if it has any: a share of the rate (``rate``), a probability
    (``loss``, ``ber``, ``corrupt``), ns (of a flap).  ``text`` is the clause as it could stand
    alone.
    """

    at_ns: int | None
    element: Element
    verb: str
    settings: tuple[tuple[str, float], ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Moment:
    """The condition of the fabric from ``at_ns`` after the common start on.

    ``text`` states what happens then, as a clause could; ``clause`` is the one it comes from, which
    has several moments if it is a flap.  ``scale_up``: it strikes a scale-up network.
    """

    at_ns: int
    text: str
    condition: Condition
    clause: str = ""
    scale_up: bool = False


def describe() -> str:
    """The grammar for a help text."""
    return """\
Faults: [t=TIME] [ELEMENT] VERB; ...   (fabric time after the start; inject: no t=, no flap)
  link NODE:PORT   down|up  flap every=1ms for=5ms             carrier, at both ends
                   blackhole[=out|in]  rate=100Gbps [thresholds=scaled]          silent
                   loss=1%  ber=1e-7  corrupt=0.1%  heal                         silent
  switch NAME      down|up|flap                                all of its cables
  nic GPU[:PORT]   down|up|flap                                those of the GPU
  gpu NAME         dead                                        its NIC keeps carrier; run only
  server NAME      dead                                        its GPUs and all of its cables
  scale-up GPU     down|up|flap  links=10  rate=250GB/s  heal  all of its links; run only
  scale-up GPU:GPU down|up|flap  rate=20GB/s  heal             of a mesh or ring; run only"""


def timeline(texts: Sequence[str], topology: Topology) -> tuple[Moment, ...]:
    """The moments of all ``--fault`` options together, in order of time.

    Raises :class:`UserError` for what cannot be read, is not there, or contradicts itself.
    """
    clauses: list[Clause] = []
    for text in texts:
        own = parse(text, topology)
        for clause in own:
            if clause.at_ns is None:
                raise UserError(
                    f"--fault {clause.text!r} does not say when; begin it with a time after the "
                    f"start, such as t=2ms {clause.text}"
                )
        for one, next_one in pairwise(own):
            if _when(next_one) < _when(one):
                raise UserError(
                    f"--fault {next_one.text!r} comes after {one.text!r} and is earlier: put the "
                    "clauses in order of time, or give --fault twice"
                )
        clauses += own
    steps = [(step, clause.text) for clause in clauses for step in _unfolded(clause)]
    moments, condition = [], SOUND
    for step, stated in sorted(steps, key=lambda one: _when(one[0])):
        condition = after(condition, step)
        inside = step.element.scale_up is not None
        moments.append(Moment(_when(step), step.text, condition, stated, inside))
    for down in condition.down:
        if down.scale_up is not None:
            raise UserError(
                f"--fault: {down} stays down, and its copies wait for it: say when it is up, or "
                f"take gpu {down.gpus[0]} dead, as a job ends that lost it for good"
            )
    return tuple(moments)


def parse(text: str, topology: Topology) -> list[Clause]:
    """The clauses of ``text``.  Raises :class:`UserError` in one sentence."""
    if not text.strip():
        raise UserError(f"the fault {text!r} says nothing; write for example {_EXAMPLE}")
    clauses: list[Clause] = []
    last: Element | None = None
    for part in text.split(";"):
        stated = " ".join(part.split())
        if not stated:
            raise UserError(f"{text!r} has a clause that says nothing; take a semicolon away")
        clause = _clause(stated, last, topology)
        last = clause.element
        clauses.append(clause)
    return clauses


def after(condition: Condition, clause: Clause) -> Condition:
    """``condition`` once ``clause`` has happened.

    Raises :class:`UserError` for what is no change: ``up`` of what was not down.
    """
    one, links = clause.element, clause.element.links
    if one.scale_up is not None and clause.verb in ("set", "heal"):
        left = {gpus: share for gpus, share in condition.scale_up.items() if gpus != one.gpus}
        if clause.verb == "set":
            left[one.gpus] = min(share for _, share in clause.settings)
        elif len(left) == len(condition.scale_up):
            raise _unstruck(clause, condition)
        return replace(condition, scale_up=left)
    match clause.verb:
        case "down":
            if one in condition.down:
                raise UserError(f"{clause.text!r}: {one} is down already; take the clause out")
            return condition.lowered(one)
        case "dead":
            if one in condition.down or (
                not one.links and condition.dead_gpus.issuperset(one.gpus)
            ):
                raise UserError(f"{clause.text!r}: {one} is dead already; take the clause out")
            return condition.lowered(one)
        case "up":
            if one not in condition.down:
                down = ", ".join(map(str, condition.down))
                raise UserError(
                    f"{clause.text!r}: {one} is not down then; "
                    + (f"what is down is {down}" if down else "take the clause out")
                )
            return condition.raised(one)
        case verb if verb in BLACK_HOLES:
            way = verb.partition("=")[2]
            if way and one.name != str(links[0].a):  # named by its other end
                way = "in" if way == "out" else "out"
            return condition.faulted(links, black_hole=True, one_way=way)
        case "heal":
            if not any(link in condition.faults for link in links):
                raise _unstruck(clause, condition)
            return condition.healed(links)
        case _:
            names = {"loss": "loss", "ber": "bit_errors", "corrupt": "corruption"}
            given = dict(clause.settings)
            changes: dict[str, float] = {names[key]: v for key, v in given.items() if key in names}
            if "rate" in given:
                changes |= {"rate": given["rate"], "scaled": "thresholds" in given}
            return condition.faulted(links, **changes)


def _unstruck(clause: Clause, condition: Condition) -> UserError:
    one = clause.element
    hint = f"; write {one} up" if one in condition.down else "; take the clause out"
    return UserError(f"{clause.text!r}: nothing silently strikes {one} then{hint}")


def _when(clause: Clause) -> int:
    return clause.at_ns or 0


def _clause(stated: str, last: Element | None, topology: Topology) -> Clause:
    words = stated.split()
    at_ns, when = None, ""
    if words[0].startswith("t="):
        when = words.pop(0)
        try:
            at_ns = parse_time_ns(when.removeprefix("t="))
        except UnitError as error:
            raise UserError(f"{stated!r}: t= is no time after the start: {error}") from None
    verbs = (*STATES, *SETTINGS, *FLAPPING, *PACES)
    if words and words[0] in KINDS:
        if len(words) < 2:
            raise UserError(
                f"{stated!r} does not say which {words[0]}; write for example {_EXAMPLE}"
            )
        try:
            faulted = element(words[0], words[1], topology)
        except UserError as error:
            raise UserError(f"{stated!r}: {error}") from None
        words = words[2:]
    elif words and (word := words[0].partition("=")[0]) not in verbs:
        raise UserError(
            f"{stated!r}: {words[0]!r} is neither {', '.join(KINDS[:-1])} or {KINDS[-1]} nor "
            f"anything that happens to them{meant(word, (*KINDS, *STATES, *SETTINGS))}; write for "
            f"example {_EXAMPLE}"
        )
    elif last is None:
        raise UserError(f"{stated!r} does not say what is struck; write for example {_EXAMPLE}")
    else:
        faulted = last
    if not words:
        raise UserError(
            f"{stated!r} does not say what happens to {faulted}; end it with "
            f"{', '.join(_verbs(faulted))}"
        )
    verb, settings = _verb(words, faulted, stated, topology)
    return Clause(at_ns, faulted, verb, settings, " ".join([when, str(faulted), *words]).strip())


_EXAMPLE = "link rail0:up1 down"


def _verbs(faulted: Element) -> Sequence[str]:
    if faulted.kind == "link":
        return (*OF_LINKS, *BLACK_HOLES[1:], *(f"{name}=" for name in SETTINGS))
    if faulted.mortal:
        return ("dead",)
    if faulted.scale_up is not None:
        return ("down", "up", "flap", "heal", *(f"{name}=" for name in PACES))
    return ("down", "up", "flap")


def _at_switch(faulted: Element, topology: Topology) -> bool:
    return any(topology.node(end.node).is_switch for link in faulted.links for end in link.ends)


def _verb(
    words: Sequence[str], faulted: Element, stated: str, topology: Topology
) -> tuple[str, tuple[tuple[str, float], ...]]:
    verb, equals, _ = words[0].partition("=")
    known = _verbs(faulted)
    if words[0] in known and words[0] in BLACK_HOLES:
        verb, equals = words[0], ""
    if (f"{verb}=" if equals else verb) not in known:
        near = meant(verb, [one.removesuffix("=") for one in known])
        if f"{verb}=" in known:
            sample = "links" if faulted.scale_up is not None else "rate"
            near = f" without its value, as in {_SAMPLES[sample]}"
        elif faulted.mortal and verb in STATES:
            near = f": a {faulted.kind} dies, until the iteration has ended (in a lab: until heal)"
        elif verb in known:
            near = f"; {verb} takes {'out, in or ' if verb == 'blackhole' else ''}no value"
        raise UserError(
            f"{stated!r}: {words[0]!r} is nothing that happens to a {faulted.kind}{near}; take one "
            f"of {', '.join(known)}"
        )
    if equals and faulted.scale_up is not None:
        return "set", _settings(words, PACES, faulted, stated)
    of_carrier = verb in ("down", "up", "flap", "dead") or not faulted.links
    if not of_carrier and not _at_switch(faulted, topology):
        raise UserError(
            f"{stated!r}: {faulted} is plugged into no switch whose ASIC could inject {verb}; take "
            "down, or name a cable of the NIC that leaves the server"
        )
    if verb == "flap":
        return verb, _settings(words[1:], FLAPPING, faulted, stated, whole=True)
    if equals:
        found = _settings(words, SETTINGS, faulted, stated)
        if "thresholds" in dict(found) and "rate" not in dict(found):
            raise UserError(
                f"{stated!r}: thresholds=scaled goes with the rate that they are scaled by; write "
                "for example rate=100Gbps thresholds=scaled"
            )
        return "set", found
    if len(words) > 1:
        raise UserError(
            f"{stated!r}: {words[1]!r} follows {verb}, which takes nothing; part clauses by "
            "semicolons"
        )
    return verb, ()


def _settings(
    words: Sequence[str],
    known: Sequence[str],
    faulted: Element,
    stated: str,
    *,
    whole: bool = False,
) -> tuple[tuple[str, float], ...]:
    found: dict[str, float] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in known or not equals:
            raise UserError(
                f"{stated!r}: {word!r} is not one of {', '.join(f'{one}=' for one in known)}"
                f"{meant(name, known)}; write for example {_SAMPLES[known[0]]}"
            )
        if name in found:
            raise UserError(f"{stated!r} has {name}= twice; keep one of them")
        try:
            found[name] = _READERS[name](value, faulted)
        except (UnitError, UserError) as error:
            raise UserError(f"{stated!r}: {name}= is no good: {error}") from None
    if whole and (missing := [name for name in known if name not in found]):
        raise UserError(
            f"{stated!r} lacks {' and '.join(f'{name}=' for name in missing)}; write for example "
            f"{_SAMPLES[known[0]]}"
        )
    return tuple(found.items())


_SAMPLES = {
    "every": "flap every=1ms for=5ms",
    "links": "links=10 or rate=250GB/s",
    "rate": "rate=100Gbps, loss=1%, ber=1e-7 or corrupt=0.1%",
}


def _rate(text: str, faulted: Element) -> float:
    whole = (faulted.scale_up or faulted.links[0]).rate_bps
    rate = parse_rate(text)
    if not 0 < rate <= whole:
        way_out = "leave it out, or lower it"
        if not rate and faulted.scale_up is None:
            way_out = "blackhole swallows everything"
        raise UserError(
            f"{text} is not above 0 and at most the {format_rate(whole)} of {faulted}; {way_out}"
        )
    if faulted.scale_up is not None and rate / whole < SMALLEST_PACE:
        raise UserError(f"{text} is less than a millionth of {format_rate(whole)}; take down")
    return rate / whole


def _links(text: str, faulted: Element) -> float:
    scale_up = faulted.scale_up
    links = 0 if scale_up is None or scale_up.shape != SWITCH else scale_up.links
    if not links:
        raise UserError(
            f"{faulted} has no known number of links to a switch; write rate=, or take a product, "
            "such as scale_up=nvswitch3"
        )
    if not (text.isdecimal() and 0 < int(text) <= links):
        raise UserError(f"{text!r} is not 1 to {links}, the links of {faulted}")
    return int(text) / links


def _scaled(text: str, _: Element) -> float:
    if text != "scaled":
        raise UserError(f"{text!r} is not scaled; leave it out to keep the thresholds")
    return 1.0


def _share(text: str, _: Element) -> float:
    match = _SHARE.fullmatch(text)
    if match is None or not 0 < float(match[1]) <= 100:
        raise UserError(f"{text!r} is not above 0% and at most 100%; write for example 0.5%")
    share = float(match[1]) / 100
    if not round(share * WHOLE):
        raise UserError(f"{text!r} is less than the switches can draw; write at least 0.0000001%")
    return share


def _ratio(text: str, _: Element) -> float:
    return bit_error_ratio(text, "it")


def bit_error_ratio(text: str, what: str) -> float:
    """Return the bit error ratio ``text``, which ``what`` is; UserError if it cannot be drawn."""
    ratio = float(text) if _RATIO.fullmatch(text) else 0.0
    if not SMALLEST_BER <= ratio <= LARGEST_BER:
        raise UserError(
            f"{what} is {text!r}, no bit error ratio of {SMALLEST_BER:g} to {LARGEST_BER:g}; "
            "write for example 1e-7"
        )
    return ratio


def _duration(text: str, _: Element) -> float:
    duration = parse_time_ns(text)
    if duration < 2:
        raise UserError(f"{text} is no time to flap in; write for example 1ms")
    return duration


_READERS: Mapping[str, Callable[[str, Element], float]] = {
    "rate": _rate,
    "links": _links,
    "thresholds": _scaled,
    "loss": _share,
    "ber": _ratio,
    "corrupt": _share,
    "every": _duration,
    "for": _duration,
}


def _unfolded(clause: Clause) -> Iterator[Clause]:
    """A flap as the downs and ups that it is; anything else as it stands."""
    if clause.verb != "flap":
        yield clause
        return
    periods = dict(clause.settings)
    every, lasts = int(periods["every"]), int(periods["for"])
    count = lasts // every
    if not 1 <= count <= MOST_FLAPS:
        raise UserError(
            f"{clause.text!r}: for={format_time(lasts)} has {count} periods of "
            f"{format_time(every)}; 1 to {MOST_FLAPS} make a flap"
        )
    for number in range(count):
        begin = _when(clause) + number * every
        for at_ns, verb in ((begin, "down"), (begin + every // 2, "up")):
            stated = f"t={format_time(at_ns).replace(' ', '')} {clause.element} {verb}"
            yield Clause(at_ns, clause.element, verb, (), stated)
