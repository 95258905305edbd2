"""More links, spines, uplinks or buffers make no scenario slower, nor do fewer senders.

Each scenario of the registry is run on its smallest fabric, and on one with twice as much of one
resource; so a new scenario is tried by itself.  A row may take :data:`TOLERANCE` longer.  What
takes more is in :data:`EXCEPTIONS`, with the mechanism that was found; a stale one fails.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import pytest
from _pytest.mark import ParameterSet

from emulator import scenario
from emulator.run.plan.run_plan import RunRequest
from emulator.run.runner import prepare
from tests.harness.runs.model_comparisons import FEW, ONE_PATH, SCENARIOS, TRACE, UET_ALONE
from tests.harness.runs.unseen_run import result_of
from tests.scenarios.test_every_parameter import SMALLER, base_of
from topologies.catalogue import DESIGNS, load, rebuilt, spec_of
from topologies.parts.design_parameters import SIZE

#: Set before the first run: 2 % longer is no slower.
TOLERANCE = 0.02
#: What is doubled, by parameters of designs.
DOUBLED: Mapping[str, Sequence[str]] = {
    "faster links": ("nic_rate", "uplink_rate", "super_rate", "scale_up_rate", "storage_rate"),
    "more spines": ("spines", "storage_spines"),
    "more uplinks": ("uplinks_per_spine",),
    "deeper buffers": ("buffer",),
}
POOL = "larger pool"
#: The switch without and with twice the memory that its ports share.
POOLS = ("th5:pool=4MB", "th5:pool=8MB")
#: Senders of an incast, and fewer.
FEWER = "fewer senders"
SENDERS = {"incast": ("4", "3"), "victim": ("4", "3"), "outcast": ("2", "1"), "ccsweep": ("4", "3")}
TRANSPORTS = ("uet", "rocev2")
#: The size of the smallest run, and the one that scenarios with a size are also run with.
SMALL, LARGE = "", "1MiB"
#: Scenarios whose rows choose their switches themselves.
OWN_SWITCHES = ("ccsweep", "pfcstorm")
#: A row that takes longer with the first one is judged by the median of all.
SEEDS = (1, 2, 3)

Case = tuple[str, str, str, str]
_DROPPED_END = (
    "more packets reach the bad NIC's queue before the watchdog empties it (274 and 293 in place "
    "of 178 are dropped), the end of a flow among them, which the retry timer finds after 67 ms"
)
_MARKED = (
    "fewer uplinks are paused, so more of the feeders' packets wait at the bad NIC's port (215 KB "
    "in place of 160), where they are marked (306 in place of 275): windows are smaller when it "
    "comes back, and 95 packets in place of 188 pass from 44 to 88 us. Flows that have nothing "
    "to do with that NIC end earlier"
)
#: Cases that take longer, with the reason.
EXCEPTIONS: Mapping[Case, str] = {
    ("linkfail", "uet", SMALL, "faster links"): (
        "at 800G nearly all packets have left when the black link is noticed: what it swallows is "
        "the end of each flow, which no acknowledgement of a later packet tells. 14 probes find "
        "it, five of which are lost as well, each after four round trips of silence; at 400G it "
        "takes 8 probes. With size=4MiB 800G is faster"
    ),
    ("pfcstorm", "uet", LARGE, "more spines"): _MARKED,
    ("pfcstorm", "uet", LARGE, "more uplinks"): _MARKED,
    ("pfcstorm", "rocev2", LARGE, "faster links"): _DROPPED_END,
    ("pfcstorm", "rocev2", LARGE, "more spines"): _DROPPED_END,
}
#: Cases that run in CI.
USUAL: Sequence[Case] = (
    ("allreduce", "uet", SMALL, "faster links"),
    ("alltoall", "rocev2", SMALL, "more spines"),
    ("permutation", "rocev2", SMALL, "more uplinks"),
    ("pairs", "uet", SMALL, "more uplinks"),
    ("incast", "uet", SMALL, FEWER),
    ("incast", "rocev2", SMALL, "deeper buffers"),
    ("incast", "rocev2", LARGE, POOL),
    ("victim", "rocev2", SMALL, FEWER),
    ("losssweep", "uet", SMALL, "faster links"),
)


def size_of(name: str) -> str | None:
    """Return the parameter of a scenario that is the size of its messages; None if it has none."""
    kinds = {
        item.name: item.metadata["kind"]
        for item in dataclasses.fields(scenario.load(name).module.Parameters)
    }
    return next((one for one in ("size", "sizes") if kinds.get(one) == SIZE), None)


def cases() -> Iterator[ParameterSet]:
    """Yield all cases: scenario, transport, size, and what there is more of."""
    for name in scenario.names():
        if name in UET_ALONE:
            continue
        sizes = (SMALL, LARGE) if size_of(name) else (SMALL,)
        changes = [*DOUBLED, POOL, *([FEWER] if name in SENDERS else [])]
        for case in product((name,), TRANSPORTS, sizes, changes):
            if case[-1] == POOL and (case[1] != "rocev2" or name in OWN_SWITCHES):
                continue
            marks = [] if case in USUAL else [pytest.mark.nightly]
            yield pytest.param(*case, id=" ".join(filter(None, case)), marks=marks)


def doubled(spec: str, parameters: Sequence[str]) -> str:
    """Return ``spec`` with twice the values of ``parameters`` that its design has."""
    base = load(spec)
    fields = DESIGNS[base.name].fields
    changes = {
        key: fields[key].kind.format(2 * value).replace(" ", "")  # type: ignore[arg-type]
        for key in parameters
        if isinstance(value := base.parameters.get(key), int) and value
    }
    return spec_of(rebuilt(base, **changes))


def smallest(name: str, transport: str, size: str) -> tuple[dict[str, str], str]:
    """Return the parameters and the fabric of the smallest run of a scenario, but for ``size``."""
    if name == "trace":
        return {"files": "step.csv"}, FEW
    one_path = transport == "rocev2" and name in ONE_PATH
    texts, topology = base_of(name, ONE_PATH if one_path else SCENARIOS)
    texts |= dict(one.split("=", 1) for one in (() if one_path else SMALLER.get(name, ())))
    if size:
        texts[size_of(name) or ""] = size
    loaded = scenario.load(name)
    spec = topology or loaded.topology(loaded.parameters(texts))
    assert isinstance(spec, str)
    return texts, spec


@cache
def times(
    name: str, transport: str, size: str, spec: str, switch: str | None, senders: str, seed: int
) -> tuple[float, ...]:
    """Return the time (us) of each row of a run on a model."""
    loaded = scenario.load(name)
    texts, _ = smallest(name, transport, size)
    texts |= {"senders": senders} if senders else {}
    with TemporaryDirectory() as made, chdir(made):
        Path("step.csv").write_text(TRACE)
        request = RunRequest(
            scenario=loaded,
            parameters=loaded.parameters(texts),
            topology=spec,
            transport=transport,
            switch=switch,
            seed=seed,
            fabric="model",
            capture="none",
            output=Path(made) / "run",
        )
        result = result_of(prepare(request))
    assert result.errors == []
    return tuple(float(str(row["time_us"])) for row in result.rows)


def slower(name: str, transport: str, size: str, change: str) -> list[str]:
    """Return the rows that take longer with more, as sentences."""
    _, spec = smallest(name, transport, size)
    runs: list[tuple[str, str | None, str]]
    if change in DOUBLED:
        runs = [(spec, None, ""), (doubled(spec, DOUBLED[change]), None, "")]
    elif change == POOL:
        runs = [(spec, switch, "") for switch in POOLS]
    else:
        runs = [(spec, None, number) for number in SENDERS[name]]
    found: list[str] = []
    for seeds in (SEEDS[:1], SEEDS):  # most need but one
        before, after = (
            [
                median(of_row)
                for of_row in zip(
                    *(times(name, transport, size, *run, seed) for seed in seeds), strict=True
                )
            ]
            for run in runs
        )
        found = [
            f"row {number}: {more:.3f} us, and {less:.3f} us with less"
            for number, (less, more) in enumerate(zip(before, after, strict=True))
            if more > less * (1 + TOLERANCE)
        ]
        if not found:
            break
    return found


@pytest.mark.parametrize(("name", "transport", "size", "change"), list(cases()))
def test_more_makes_nothing_slower(name: str, transport: str, size: str, change: str) -> None:
    found = slower(name, transport, size, change)
    if (name, transport, size, change) in EXCEPTIONS:
        assert found, "it is no exception any more: take it out of the list"
    else:
        assert found == []


def test_exceptions_are_cases() -> None:
    known = {tuple(case.values) for case in cases()}
    assert EXCEPTIONS.keys() <= known
    assert set(USUAL) <= known
