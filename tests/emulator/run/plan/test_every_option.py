"""Every parameter of a switch or a transport changes a run, or is refused: none is silent.

Parameters come from the registries, and values from how they are described: a new parameter is
tried by itself.  What only states the default may change nothing.  A parameter that needs others,
or a workload that meets it, has them in :data:`NEEDS`.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from emulator import scenario
from emulator.dataplane.switch import switch_fitting
from emulator.dataplane.switch.balancing import METHODS
from emulator.dataplane.switch.parameters import CLASS_NAMES, DSCP, OF_CBFC, OF_LLR, described
from emulator.dataplane.switch.switch_choice import parse
from emulator.errors import UserError
from emulator.rocev2.congestion.dcqcn_parameters import NAMED
from emulator.run.plan.run_plan import RunRequest
from emulator.run.runner import prepare
from emulator.transports import TRANSPORTS
from tests.harness.nightly import nightly
from tests.harness.runs.unseen_run import result_of
from topologies.catalogue import load
from uet.congestion.control_registry import tuned_controls

SMALL = "rail_clos:hosts=3,gpus_per_host=2,buffer=100KB"
LARGE = "rail_clos:hosts=3,gpus_per_host=2,buffer=290KB"
#: Senders on their own rail and on the other: queues of one port overflow, and spines are crossed.
INCAST = (
    *(("senders", "4"), ("size", "128KiB"), ("message", "16KiB"), ("in_flight", "8")),
    *(("victim", "2"), ("warmups", "0"), ("placement", "any")),
)
SWITCHES = {"shallow": SMALL, "deep": SMALL, "lossless": LARGE}
BIT_ERRORS = ("t=1us link h1g0:eth0 ber=2e-5; t=1us link rail0:up0 ber=2e-5",)


@dataclasses.dataclass(frozen=True)
class Need:
    """What a parameter needs to have an effect."""

    switch: str = ""
    faults: tuple[str, ...] = ()
    scenario: str = "incast"
    given: tuple[tuple[str, str], ...] = INCAST
    topology: str | None = None


STORM = Need(
    scenario="pfcstorm",
    given=(("size", "256KiB"), ("rows", "storm"), ("storm_at", "1us"), ("storm_for", "60us")),
    topology="rail_clos:hosts=4,gpus_per_host=2",
)
TRIMS = Need(given=(*INCAST[1:], ("senders", "8")), topology="rail_clos:hosts=3,gpus_per_host=4")
NEEDS: Mapping[str, Need] = {
    "flowlet_gap": Need("balance=flowlet"),
    "pfc_deadlock": Need(topology="torus:x=4,y=4"),
    "pfc_watchdog": STORM,
    "pfc_watchdog_action": dataclasses.replace(STORM, switch="pfc_watchdog=20us"),
    "data_share": TRIMS,
    "rocev2 dscp.46": Need(scenario="alltoall", given=(("sizes", "64KiB"), ("warmups", "0"))),
    "llr": Need(faults=BIT_ERRORS),
    "reserved": Need("pool=300KB"),
    "rocev2 reserved": Need("pool=100KB"),
    "headroom_pool": Need("pool=2MB,pfc_alpha=0.01"),
    "pfc_alpha": Need("pool=2MB"),
    **{f"{name}.alpha": Need("pool=300KB") for name in CLASS_NAMES},
    **{name: Need("llr=on", BIT_ERRORS) for name in OF_LLR},
    **{name: Need("cbfc=on,cbfc_buffer=40000") for name in OF_CBFC},
    **{f"rocev2 {name}": Need("cbfc=on,cbfc_buffer=30000") for name in OF_CBFC},
}
#: What changes nothing where this test looks, and why that is right.
REASONS: Mapping[str, str] = {
    "rocev2 trim=off": "none of its packets is trimmed, as it says",
    "rocev2 data_share": "it binds where control fills a link, as headers of trimmed packets do",
    **dict.fromkeys(
        ("data_share on deep", "data_share on lossless"), "the same: nothing is trimmed"
    ),
    "rocev2 pfc": "it chooses the switch where --switch says nothing",
    "uet short": "no message waits here for a longer one to the same peer",
    **dict.fromkeys(
        (f"uet nscc.{name}" for name in ("quick_adapt", "qa_gate", "drop_threshold")),
        "windows are not cut to what has arrived here; tests/uet/congestion/controls/test_nscc.py",
    ),
    **dict.fromkeys(
        (
            f"rocev2 dcqcn.{name}"
            for name in (
                *("rate_interval", "byte_unit", "hyper_rate", "least_rate"),
                "clamp_after_time",
            )
        ),
        "it acts later than these flows end; tests/emulator/rocev2/congestion/",
    ),
    "rocev2 llr_timer": "what follows a lost frame shows it before the timer does",
    "rocev2 control.alpha": "acknowledgements and CNPs hardly wait here",
    "control.limit_bytes": "no queue of acknowledgements gets as deep as a frame of data here",
    "trimmed.limit_bytes": "no queue of headers gets as deep as a frame of data here",
}
#: Values of a parameter, by how its values are described.
VALUES: Mapping[str, tuple[str, ...]] = {
    "on|off": ("on", "off"),
    "SIZE": ("100", "1000", "40000"),
    "SIZE|none": ("200KB", "2MB"),
    "0..128": ("0.1", "0.001"),
    "TIME": ("100ns", "2us", "8us"),
    "TIME|off": ("20us",),
    "DEPTH": ("20KB", "0.1bdp"),
    "DEPTH|none": ("100", "20KB", "none"),
    "0..1": ("0.05",),
    "0..0.5": ("0.4",),
    "0..7": ("5",),
    "N|unlimited": ("1",),
    "1..524288": ("2",),
    "32..2048": ("256",),
    "-16..127": ("60",),
}


@cache
def digest(transport: str, switch: str, topology: str, need: Need = Need()) -> str | None:
    """Return the digest of a run; None if it is refused."""
    loaded = scenario.load(need.scenario)
    with TemporaryDirectory() as folder:
        request = RunRequest(
            scenario=loaded,
            parameters=loaded.parameters(dict(need.given)),
            topology=need.topology or topology,
            transport=transport,
            switch=switch,
            fabric="model",
            capture="none",
            output=Path(folder) / "run",
            faults=need.faults,
        )
        try:
            plan = prepare(request)
        except UserError:
            return None
        result = result_of(plan)
    return f"{result.digest} {result.errors}"


def settings(key: str, described: str) -> Iterator[str]:
    """Yield the values of ``key`` that are tried; a new form of values needs its own above."""
    words = tuple(METHODS) if described == "METHOD" else VALUES.get(described)
    if words is None:
        words = tuple(described.split("|"))
        assert all(word.isalpha() for word in words), f"{key}: say in VALUES what to try"
    yield from words


def options() -> Iterator[tuple[str, str]]:
    """Yield each parameter of a switch, with the form of its values."""
    for key, (form, _) in described().items():
        name, _, rule = key.partition(".")
        if name == "CLASS":
            yield from ((f"{one}.{rule}", form) for one in CLASS_NAMES)
        elif f"{name}." == DSCP:  # of UET, of RoCEv2, of trimmed packets, of nobody
            yield from ((f"{DSCP}{point}", form) for point in (0, 26, 46, 10, 12, 3))
        else:
            yield key, form


def states_default(switch: str, parameter: str, topology: str) -> bool:
    """Return whether ``parameter`` only says what ``switch`` does on ``topology`` without it."""
    fitted = [
        switch_fitting.fit(parse(text), load(topology), 1.0, clock="virtual")
        for text in (switch, extended(switch, parameter))
    ]
    choices = [dataclasses.replace(one.choice, name="", changes={}) for one in fitted]
    classes = [{k: p.classes() for k, p in one.profiles.items()} for one in fitted]
    rules = [
        dataclasses.replace(
            one,
            choice=choices[0],
            profiles={k: dataclasses.replace(p, queues={}) for k, p in one.profiles.items()},
        )
        for one in fitted
    ]
    return choices[0] == choices[1] and classes[0] == classes[1] and rules[0] == rules[1]


def extended(base: str, *parameters: str) -> str:
    """Return ``base`` with ``parameters``, one of which may take the place of its own."""
    name, _, own = base.partition(":")
    found = dict(part.split("=") for part in (*own.split(","), *parameters) if part)
    return f"{name}:{','.join(f'{key}={value}' for key, value in found.items())}".rstrip(":")


def over_transports() -> Iterator[object]:
    """Yield them over the transport that they are most for, and at night over the other, too.

    At night they are tried on all switches, and else on the first one that takes them.
    """
    for key, form in options():
        own, other = "uet", "rocev2"
        if key.startswith("pfc"):
            own, other = other, own
        yield key, form, own, False
        yield nightly((key, form, own, True))
        yield nightly((key, form, other, True))


@pytest.mark.parametrize(("key", "form", "transport", "everywhere"), list(over_transports()))
def test_a_parameter_of_the_switch_is_not_silent(
    key: str, form: str, transport: str, everywhere: bool
) -> None:
    need = NEEDS.get(f"{transport} {key}", NEEDS.get(key, Need()))
    silent = []
    for profile, topology in SWITCHES.items():
        place = need.topology or topology
        base = extended(profile, *filter(None, need.switch.split(",")))
        without = digest(transport, base, place, need)
        accepted, changed = [], False
        for value in settings(key, form):
            after = digest(transport, extended(base, f"{key}={value}"), place, need)
            changed = after is not None and after != without
            if changed:
                break
            if without and after and not states_default(base, f"{key}={value}", place):
                accepted.append(f"{transport} {key}={value}")
        if not changed and not REASONS.keys() & {
            *accepted,
            *(key, f"{transport} {key}", f"{key} on {profile}"),
        }:
            silent += [f"{one} on {base}" for one in accepted]
        if changed and not everywhere:
            break
    assert silent == []


# ------------------------------------------------------------------ transports

#: Long enough for congestion control to act.
LONG = (("size", "512KiB"), ("in_flight", "32"), *INCAST[2:3], *INCAST[4:], INCAST[0])
#: Two senders whose flows fill a deep queue.
DEEP = (("size", "2MiB"), ("in_flight", "128"), ("message", "16KiB"), *INCAST[5:], ("senders", "2"))
#: What shows in the first round trips, and then holds flows up for long.
AT_ONCE = frozenset({"rocev2 timeout"})
#: Parameters that others must stand beside, or that act on another switch.
BESIDE: Mapping[str, str] = {
    "uet reorder": "delivery=rod",
    "rocev2 placement": "recovery=selective_repeat",
    "rocev2 reorder": "recovery=selective_repeat",
    **{f"uet rccc.{one.name}": "cc=rccc" for one in dataclasses.fields(tuned_controls()["rccc"])},
}
ON: Mapping[str, str] = {
    "rocev2 window": "deep",
    "uet nscc.fast_gain": "shallow",
    "uet rccc.least_grant": "shallow",
}
#: Values of a parameter that is described as NAME=FORM.
FORMS = {"N": ("0", "1", "2", "1024"), "TIME": ("2us", "1ms"), "PACKETS": ("0",), "1|64": ("64",)}
TUNED: Mapping[str, Mapping[str, object]] = {
    **{
        name: {one.name: one.default for one in dataclasses.fields(kind) if one.init}
        for name, kind in tuned_controls().items()
    },
    "dcqcn": dataclasses.asdict(NAMED["mlx"][1]),
}


def variations(value: object) -> tuple[str, ...]:
    """Return other values of a parameter of congestion control."""
    if isinstance(value, bool):
        return "0", "1"
    if not value or not isinstance(value, int | float):  # none, or what the fabric makes of it
        return "1", "1000"
    return f"{2 * value:.12g}", f"{value / 2:.12g}"


def transport_options() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield each transport and parameter, with values to try."""
    for name, transport in TRANSPORTS.items():
        for option, values in transport.options.items():
            yield name, option, values[1:]
        tuned = set()
        for stated in filter(None, transport.described()):
            option, _, form = stated.partition("=")
            control, dot, _ = option.partition(".")
            if form in FORMS and not option.endswith(".PARAMETER"):
                yield name, option, FORMS[form]
            elif dot and control not in tuned:
                tuned.add(control)
                for parameter, value in TUNED[control].items():
                    if not isinstance(value, str):
                        yield name, f"{control}.{parameter}", variations(value)


@pytest.mark.parametrize(("transport", "option", "values"), list(transport_options()))
def test_a_parameter_of_a_transport_is_not_silent(
    transport: str, option: str, values: tuple[str, ...]
) -> None:
    subject = f"{transport} {option}"
    need = Need(given=DEEP if subject in ON else INCAST if subject in AT_ONCE else LONG)
    switch = ON.get(subject, "shallow")
    base = extended(transport, *filter(None, [BESIDE.get(subject, "")]))
    topology = "rail_clos:hosts=3,gpus_per_host=2" + ("" if subject in ON else ",buffer=200KB")
    without = digest(base, switch, topology, need)
    assert without is not None
    found = (digest(extended(base, f"{option}={one}"), switch, topology, need) for one in values)
    assert any(one not in (None, without) for one in found) or subject in REASONS
