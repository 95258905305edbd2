"""Every parameter of every scenario changes a run, or is refused: none is silent.

Parameters come from the registry, and values from their kinds: a new parameter is tried by itself,
on the smallest run of its scenario.  What has an effect only beside others has them in
:data:`BESIDE`.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from emulator import scenario
from emulator.errors import UserError
from emulator.run.plan.run_plan import RunRequest
from emulator.run.runner import prepare
from tests.harness.runs.model_comparisons import SCENARIOS, TRACE
from tests.harness.runs.unseen_run import result_of
from topologies.model import TopologyError

#: A trace that does not state how many ranks there are.
FEW_RANKS = "operation,size,ranks\nbroadcast,64KiB,0-2\nsend,4KiB,0 1\n"

#: Values of a parameter, by the base unit of its kind, or the kind's name.
VALUES: Mapping[str, tuple[str, ...]] = {
    "octets": ("32KiB", "8KiB", "16", "1KiB", "3MiB"),
    "ns": ("1us", "5us", "100us", "0ns"),
    "millionths": ("0.02", "0.2", "0.5"),
    "thousandths": ("0.2", "0.5", "0.9", "3", "7000"),
    "count": ("2", "1", "3", "4", "8", "0", "16"),
    "factor": ("2", "1.5"),
    "bit error ratio": ("1e-5",),
}
#: Values of parameters by their names, with or without that of the scenario.
OF: Mapping[str, tuple[str, ...]] = {
    "slice_bytes": ("1KiB",),
    "widths": ("4,8,2", "8,4,4,2", "4,4,4,4,2", "8,8,4,8,4"),
    "ranks": ("0,1",),
    "scale": ("32768",),
    "llm hidden": ("2048",),
    "jobs hidden": ("2048",),
    "bucket": ("1GiB",),
    "inference prompt": ("8192",),
    "model_fit memory": ("8GB",),
    "model_fit activation_memory": ("75GB",),
    "model_fit tokens": ("16384",),
    "fairness tolerance": ("30",),
    "trace ranks": ("4",),
    "storage_rdma work": ("dataset,restore",),
    "trace write": ("written.goal",),
    "poisson load": ("0.9",),
    "poisson sizes": ("websearch",),
    "incast_load": ("0.9",),
}
#: Other parameters, as NAME=VALUE, beside which one has an effect; likewise.
BESIDE: Mapping[str, tuple[str, ...]] = {
    "min_size": ("sizes=", "max_size=64KiB"),
    "max_size": ("sizes=", "min_size=16KiB"),
    "factor": ("sizes=", "min_size=4KiB", "max_size=64KiB"),
    "barrier max_size": ("sizes=",),
    "in_flight": ("message=4KiB",),
    "spread": ("pattern=distance",),
    "ccsweep pattern": ("senders=",),
    "pipeline_parallel rate": ("epochs=2",),
    "micro_batch": ("batch=4",),
    "interleave": ("layers=4", "pp=2", "batch=4"),
    "ep": ("model=8x7b",),
    "gradient_bytes": ("scale=8192",),
    "elastic": ("dp=1,2",),
    "jobs pp": ("layers=2",),
    "jobs order": ("layers=2", "pp=2", "batch=8"),
    "llm pp": ("layers=2",),
    "llm order": ("layers=2", "pp=2", "batch=8"),
    "trace ranks": ("files=few.csv", "ranks=3"),
    "trace idle_ranks": ("files=few.csv", "ranks=4"),
    "jobs sp": ("tp=2",),
    "inference arrivals": ("rate=", "requests="),
    "inference decode_by": ("models=8x7b",),
    "data_parallel top": ("gradients=topk",),
    "llm top": ("scale=8192",),
    "jobs top": ("scale=8192",),
    "data_parallel feedback": ("gradients=topk",),
    "pfcstorm rows": ("watchdog=", "storm_for=60us"),
    "storage_rdma cache": ("sampling=whole", "epochs=2"),
    "storage_rdma depth": ("command=4KiB",),
    "protocol": ("library=nccl",),
    "cut": ("library=nccl",),
    "poisson duration": ("flows=",),
    "poisson incast": ("load=0.1", "flows=100"),
    "incast_size": ("incast=1", "incast_load=1"),
    "incast_load": ("incast=1", "incast_size=4KiB"),
}
#: What is refused with every value here, or has one value alone, and why that is right.
REASONS: Mapping[str, str] = {
    "tuning": "a file, of algorithm=auto; tests/scenarios/collectives/test_tuning.py",
    "neural_training model": "another scenario; tests/emulator/cli/test_run_options.py",
    "checkpoint over": "another scenario; tests/emulator/cli/test_run_options.py",
    "files": "the files are the trace",
    "format": "of names that do not say it; tests/scenarios/traces/test_trace_file.py",
    "groups": "a file; tests/scenarios/traces/formats/test_kineto.py",
    "trace root": "of other formats; tests/scenarios/traces/formats/test_kineto.py",
    "gathered": "of layers of ASTRA-sim; tests/scenarios/traces/formats/test_layer_text.py",
    "ctrl_deps": "of Chakra; tests/scenarios/traces/formats/test_chakra.py",
    "unpacked": "a bound; tests/scenarios/traces/test_trace_file.py",
    "matrix_file": "a file; tests/scenarios/collectives/test_exchange_matrix.py",
}
#: What makes the smallest run of a scenario smaller still.
SMALLER: Mapping[str, tuple[str, ...]] = {
    "ccsweep": ("cc=nscc", "profiles=shallow", "trims=on"),
    "checkpoint": ("fail=gpu",),
    "inference": ("transfer=whole",),
    "jobs": ("jobs=1", "dp=2", "batch=2"),
    "lbsweep": ("sprays=reps", "balances=flow"),
    "linkfail": ("sprays=reps",),
    "llm": ("tp=2", "pp=1", "layers=1"),
    "model_fit": ("models=8b", "state_bytes="),
    "moe": ("dedup=none", "node_limit=0", "ranks=0-7"),
    "pfcstorm": ("rows=watchdog",),
    "weight_sync": ("mode=relay,delta",),
}

#: What a parameter has no effect beside: scenario, other, and the parameter with a value.
IDLE = (
    ("ccsweep", "pattern=permutation", "senders=4"),
    ("ccsweep", "pattern=permutation", "placement=any"),
    ("checkpoint", "fail=none", "fail_at=1us"),
    ("checkpoint", "fail=none", "victim=1"),
    ("data_parallel", "gradients=fp8", "top=0.5"),
    ("data_parallel", "gradients=float32", "feedback=on"),
    ("inference", "arrivals=0us", "rate=1000"),
    ("inference", "arrivals=0us", "requests=3"),
    ("jobs", "dp=1", "gradient_bytes=2"),
    ("linkfail", "fail=slow", "black_at=1us"),
    ("linkfail", "fail=black", "slow_at=1us"),
    ("linkfail", "fail=none", "slow_to=2"),
    ("llm", "dp=1", "zero=1"),
    ("llm", "dp=1", "overlap=off"),
    ("llm", "zero=3", "bucket=1MiB"),
    ("llm", "dp=1", "top=0.01"),
    ("llm", "dp=2", "elastic=on"),
    ("pfcstorm", "rows=none", "storm_for=1us"),
    ("poisson", "duration=100us", "flows=9"),
    ("poisson", "incast=0", "incast_load=0.5"),
    ("pfcstorm", "rows=none,storm", "watchdog=1us"),
    ("storage_rdma", "work=restore", "shards=4"),
    ("storage_rdma", "work=dataset", "state=64KiB"),
    ("storage_rdma", "epochs=1", "cache=0"),
    ("weight_sync", "load=0", "messages=4"),
    ("weight_sync", "mode=p2p", "fan_out=2"),
    ("weight_sync", "mode=relay", "changed=0.5"),
)


def parameters() -> Iterator[ParameterSet]:
    """Yield them all; one that many scenarios inherit is tried with one, and at night with all."""
    inherited: Counter[tuple[type, str]] = Counter()
    for name in scenario.names():
        kind = scenario.load(name).module.Parameters
        for item in dataclasses.fields(kind):
            owner = next(
                one
                for one in reversed(kind.__mro__)
                if item.name in vars(one).get("__annotations__", ())
            )
            inherited[owner, item.name] += 1
            marks = [pytest.mark.nightly] if inherited[owner, item.name] > 1 else []
            yield pytest.param(name, item, id=f"{name} {item.name}", marks=marks)


def base_of(
    name: str, runs: Mapping[str, Sequence[str]] = SCENARIOS
) -> tuple[dict[str, str], str | None]:
    """Return the parameters and the topology of the smallest run of a scenario, as in ``runs``."""
    given: dict[str, str] = {}
    if name == "trace":
        return {"files": "step.csv"}, None
    topology, words = None, list(runs[name])
    while words:
        word = words.pop(0)
        if word == "--param":
            key, _, value = words.pop(0).partition("=")
            given[key] = value
        elif word == "--topology":
            topology = words.pop(0)
        else:
            given[word.removeprefix("--")] = words.pop(0)
    return given, topology


@cache
def outcome(name: str, changed: tuple[tuple[str, str], ...]) -> str | None:
    """Return the rows and the digest of a run; None if it is refused."""
    loaded = scenario.load(name)
    with TemporaryDirectory() as made, chdir(made):
        for trace, text in {"step.csv": TRACE, "few.csv": FEW_RANKS}.items():
            Path(trace).write_text(text)
        given, topology = base_of(name)
        given = {key: value for key, value in {**given, **dict(changed)}.items() if value}
        try:
            request = RunRequest(
                scenario=loaded,
                parameters=loaded.parameters(given),
                topology=topology,
                fabric="model",
                capture="none",
                output=Path(made) / "run",
            )
            plan = prepare(request)
        except (UserError, TopologyError):
            return None
        result = result_of(plan)
    fields = vars(request.parameters)
    rows = [{key: value for key, value in row.items() if key not in fields} for row in result.rows]
    return f"{rows} {result.digest} {result.errors}"


def values_of(item: dataclasses.Field[Any]) -> tuple[str, ...]:
    kind, choices = item.metadata["kind"], item.metadata["choices"]()
    if choices:
        return tuple(reversed(choices))  # the default is mostly the first
    return VALUES.get(getattr(kind, "base", None) or kind.name, ())


@pytest.mark.parametrize(("name", "item"), list(parameters()))
def test_a_parameter_is_not_silent(name: str, item: dataclasses.Field[Any]) -> None:
    own = f"{name} {item.name}"
    beside = tuple(
        (key, value)
        for key, _, value in (
            one.partition("=")
            for one in (*SMALLER.get(name, ()), *BESIDE.get(own, BESIDE.get(item.name, ())))
        )
    )
    without = outcome(name, beside)
    assert without is not None
    values = OF.get(own, OF.get(item.name, values_of(item)))
    found = (outcome(name, (*beside, (item.name, value))) for value in values)
    alone = len(item.metadata["choices"]()) == 1
    assert (
        alone
        or any(one not in (None, without) for one in found)
        or REASONS.keys() & {own, item.name}
    )


@pytest.mark.parametrize(("name", "beside", "idle"), IDLE)
def test_what_has_no_effect_is_refused(name: str, beside: str, idle: str) -> None:
    given = dict(one.split("=", 1) for one in (beside, idle))
    with pytest.raises(UserError, match=f"^{idle.split('=')[0]} changes nothing beside .*: leave"):
        scenario.load(name).parameters(given)
