"""Stages: the transport and switches of each trial, by the user's choice and its own.

Both are written ``NAME[:PARAMETER=VALUE,...]``.  A scenario that compares, say, spraying policies
has trials with ``spray=reps`` and ``spray=oblivious``; whatever a trial leaves open is the user's,
and what the user leaves open is the default.  Where both set the same parameter to different values
the run is refused. The row would be neither what its scenario describes nor what the user
requested.

Trials in a row that share both form a stage.  Between stages the switches are configured anew, and
where the transport changes the endpoints are made anew; the fabric stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emulator.dataplane.switch.parameters import CBFC, LATENCY, OF_PFC, PARAMETERS, PFC
from emulator.dataplane.switch.switch_choice import DEFAULT
from emulator.errors import UserError
from emulator.run.plan.variants import DEFAULT_TRANSPORT
from emulator.scenario import Trial


@dataclass(frozen=True)
class StageChoice:
    """``NAME[:PARAMETER=VALUE,...]``; ``name`` is empty where only parameters are given."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> StageChoice:
        name, colon, rest = text.partition(":")
        if not colon and "=" in name:
            name, rest = "", name
        pairs = []
        for part in filter(None, (part.strip() for part in rest.split(","))):
            key, _, value = part.partition("=")
            pairs.append((key.strip(), value.strip()))
        return cls(name.strip(), tuple(pairs))

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" if value else key for key, value in self.options)
        return f"{self.name}:{options}" if options else self.name


def merged(option: str, asked: str | None, own: str, default: str) -> str:
    """Merge the choice of a trial: ``asked`` by the user with ``option``, and the trial's ``own``.

    Raises :class:`UserError` if they contradict each other.
    """
    if asked is not None and not asked.strip():
        raise UserError(f"{option} is empty; leave it out, or write for example {default}")
    user, trial = StageChoice.parse(asked or ""), StageChoice.parse(own)
    if user.name and trial.name and user.name != trial.name:
        raise _contradiction(option, user.name, trial.name)
    given = dict(user.options)
    for key, value in trial.options:
        if given.get(key, value) != value:
            raise _contradiction(option, f"{key}={given[key]}", f"{key}={value}")
    options = [*user.options, *((k, v) for k, v in trial.options if k not in given)]
    return str(StageChoice(user.name or trial.name or default, tuple(options)))


def _switch(asked: str | None, of_transport: str | None, own: str, default: str) -> str:
    """Return the switch of a trial.

    The thresholds that its transport is set up with count where the user names no switch and the
    trial no other profile.

    What the user states for the switch of one transport counts for it in place of ``asked``. All
    else stays as is customary.
    """
    if of_transport is not None:
        chosen = merged("--transport", of_transport, own, StageChoice.parse(default).name)
        return with_customary(chosen, default)
    chosen = merged("--switch", asked, own, StageChoice.parse(default).name)
    return chosen if asked is not None else with_customary(chosen, default)


def with_customary(switch: str, customary: str) -> str:
    """Return ``switch`` with the parameters of ``customary`` that it leaves open.

    Both must have the same name.

    Without priority flow control, or with credits in its place, its parameters are not left open.
    """
    chosen, usual = StageChoice.parse(switch), StageChoice.parse(customary)
    if chosen.name != usual.name:
        return switch
    given = dict(chosen.options)
    unpaused = given.get(PFC) == "off" or given.get(CBFC) == "on"
    closed = {*given, *(OF_PFC if unpaused else ())}
    more = [(key, value) for key, value in usual.options if key not in closed]
    return str(StageChoice(chosen.name, (*chosen.options, *more)))


def asked_latency_ns(switch: str) -> int:
    """Return the pipeline latency of the choice ``switch``, 0 if it names none."""
    stated = dict(StageChoice.parse(switch).options).get(LATENCY, "0")
    latency_ns: int = PARAMETERS[LATENCY].kind.read(LATENCY, stated)
    return latency_ns


def _contradiction(option: str, user: str, trial: str) -> UserError:
    return UserError(
        f"{option} says {user} and a row of this scenario is to be run with {trial}; leave "
        f"{user.partition('=')[0]} out of {option}, and choose the rows by the scenario's "
        "parameters"
    )


@dataclass(frozen=True)
class Stage:
    """Consecutive trials (by their places in the list) on one transport and switch.

    ``fresh``: the first of them needs endpoints that have learned nothing from earlier ones.
    ``named``: the switch that the user has named for this transport alone.
    """

    transport: str
    switch: str
    trials: tuple[int, ...]
    fresh: bool = False
    named: str | None = None

    @property
    def label(self) -> str:
        """The transport as rows and lines name it."""
        return self.transport if self.named is None else f"{self.transport}@{self.named}"


def stages(
    trials: Sequence[Trial],
    *,
    transport: str | None,
    switch: str | None,
    named: str | None = None,
    default_switch: Callable[[str, int], str] = lambda transport, latency_ns: DEFAULT,
    default_transport: str = DEFAULT_TRANSPORT,
) -> list[Stage]:
    """The stages of a run in order; ``transport`` and ``switch`` are the user's choice.

    ``named`` is a switch that the user has named for this transport, whatever ``switch`` is.
    ``default_switch`` returns what a transport runs on where neither user nor trial names a switch,
    given the latency (ns) that they require of it. Its parameters do not contradict theirs, but
    give way to them.  ``default_transport`` is used where neither names one.
    """
    found: list[Stage] = []
    for place, trial in enumerate(trials):
        speaks = merged("--transport", transport, trial.transport, default_transport)
        asked = (named if named is not None else switch, trial.switch)
        usual = default_switch(speaks, max(asked_latency_ns(one or "") for one in asked))
        mine = (speaks, _switch(switch, named, trial.switch, usual))
        last = found[-1] if found else None
        if last and (last.transport, last.switch) == mine and not trial.fresh:
            found[-1] = Stage(*mine, (*last.trials, place), last.fresh, named)
        else:
            found.append(Stage(*mine, (place,), trial.fresh, named))
    return found
