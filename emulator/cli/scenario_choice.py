"""The scenario that ``uetemu run NAME`` means, also where NAME is one of a whole cluster.

Servers use storage over TCP by the host's clock (``uetemu cluster dataset``), and by RDMA in
virtual time.  ``uetemu run dataset`` means the latter, which is the scenario ``storage_rdma`` with
its ``work`` set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from emulator import scenario as scenarios
from emulator.errors import UserError

_OF_CLUSTERS = "scenarios.cluster_tests"
#: Names by which users mean TCP, which is no transport of runs.
TCP_NAMES = ("tcp", "nvme", "nvme-tcp", "nvme_tcp")


def chosen(
    name: str, given: Mapping[str, str], transport: str | None
) -> tuple[scenarios.Scenario, dict[str, str]]:
    """Return the scenario that ``name`` means with the parameters ``given``, and those to set.

    Raises UserError for a name that is none, for a parameter that contradicts the name, and for
    storage over TCP; where another command is right, the sentence has it.
    """
    plain = name.replace("-", "_")
    if plain.isidentifier() and find_spec(f"{_OF_CLUSTERS}.{plain}"):
        loaded, parameters = _by_rdma(plain, given)
    else:
        loaded, parameters = _as_given(name, given)
    over_tcp = getattr(loaded.module, "OVER_TCP", None)
    if over_tcp and transport is not None and transport.partition(":")[0] in TCP_NAMES:
        raise UserError(f"storage over TCP runs by the host's clock, on a cluster: {over_tcp}")
    return loaded, parameters


def _by_rdma(name: str, given: Mapping[str, str]) -> tuple[scenarios.Scenario, dict[str, str]]:
    """Return the run that does by RDMA what the scenario ``name`` of a cluster does."""
    from emulator.cluster.run import cluster_scenario

    by_rdma = cluster_scenario.load(name).by_rdma
    if by_rdma is None:
        raise UserError(f"{name} is a scenario of a whole cluster; run uetemu cluster {name}")
    return _varied(name, by_rdma, given)


def _as_given(name: str, given: Mapping[str, str]) -> tuple[scenarios.Scenario, dict[str, str]]:
    """Return the scenario ``name``, or the one that it has for a value of a parameter."""
    loaded = scenarios.load(name, _with_rdma())
    for parameter, instead in getattr(loaded.module, "INSTEAD", {}).items():
        chosen_value = given.get(parameter, "")
        if variant := instead.get(chosen_value):
            rest = {key: text for key, text in given.items() if key != parameter}
            return _varied(f"{name} with {parameter}={chosen_value}", variant, rest)
        for value, variant in instead.items():
            other = scenarios.load(variant[0])
            for key in (key for key in given if other.takes(key) and not loaded.takes(key)):
                raise UserError(f"{key} is for {name} with {parameter}={value}; add that --param")
    return loaded, dict(given)


def _with_rdma() -> Iterator[str]:
    """Yield the scenarios of clusters that a run can do by RDMA, for a hint to a wrong name."""
    from emulator.cluster.run import cluster_scenario

    yield from (one for one in cluster_scenario.names() if cluster_scenario.load(one).by_rdma)


def _varied(
    called: str, variant: tuple[str, Mapping[str, str]], given: Mapping[str, str]
) -> tuple[scenarios.Scenario, dict[str, str]]:
    """Return the scenario of ``variant`` with its parameters beside those that are ``given``."""
    scenario, fixed = variant
    for key, text in fixed.items():
        if given.get(key, text) != text:
            raise UserError(
                f"{called} is {scenario} with {key}={text}; leave {key} out, or run {scenario}"
            )
    return scenarios.load(scenario), {**given, **fixed}
