"""Scenarios: their form, and how one is loaded by name or from a user's own file.

A scenario is a Python module (or an object) with a docstring that reads like a lab sheet and
these four names:

``Parameters``
    A frozen dataclass.  Every field is made by :func:`parameter`, which states its kind (and so
    its unit) and one line of help.  ``__post_init__`` refuses what makes no sense.
``topology(parameters)``
    The fabric it runs on unless the user names another: a specification such as ``rail_clos`` or
    a :class:`~topologies.model.Topology`.
``schedules(parameters, topology, seed)``
    The list of :class:`Trial`, one for each line of the table.
``measures(parameters, topology, trial, outcome)``
    What is reported about a trial beyond time and errors, by result key.

Optional:

``COLUMNS``
    A tuple of :class:`~emulator.run.report.result_table.Column`, if the table should differ from
    that of the NCCL tests.
``capture(parameters, topology)``
    The ports worth capturing, as ``--capture`` takes them, unless the user names others.

A scenario opens no socket, makes no namespace and names no transport class.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import json
import pkgutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from emulator import plugins
from emulator.dataplane.switch.port_faults import Faults
from emulator.errors import UserError
from emulator.run.measures.gpu_execution import GpuExecution
from emulator.run.measures.message_times import Iteration
from emulator.run.measures.port_record import PortRecord
from emulator.run.measures.queue_depths import QueueSeries
from emulator.sim.endpoint.interruption import JobExecution
from emulator.sim.endpoint.operations.operation_table import in_columns
from emulator.sim.endpoint.operations.rank_result import RankResult
from emulator.sim.endpoint.operations.schedule import Schedule, compiled_ranks, without_others
from emulator.transports.wire_cost import WireCost
from topologies.advice import meant
from topologies.model import Topology, TopologyError
from topologies.registry import Registry

if TYPE_CHECKING:
    from emulator.transports.transport_choice import TransportChoice
    from emulator.workers.open_execution import OpenExecution


class LatestSchedules:
    """Keeps what was compiled last: a large program takes longer to compile than to read."""

    def __init__(self) -> None:
        self._kept: tuple[object, frozenset[int] | None, Sequence[Schedule]] | None = None

    def of(
        self, compile_one: Callable[[], Sequence[Schedule]], *, source: object
    ) -> Callable[[], Sequence[Schedule]]:
        """``compile_one``, which is not called if the last one called was of the same ``source``.

        Ranks that are not compiled have no operations.
        """

        def compiled() -> Sequence[Schedule]:
            kept, ranks = self._kept, compiled_ranks()
            if kept is None or kept[0] is not source or kept[1] != ranks:
                self._kept = kept = None  # there is no room for two
                self._kept = kept = source, ranks, in_columns(without_others(compile_one()))
            return kept[2]

        return compiled


#: Buffer contents by buffer name.
Contents = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class FaultAt:
    """Faults of a switch port from ``at_ns`` after the common start on.

    The switch port is ``port`` (``node:port``); :data:`emulator.dataplane.switch.port_faults.NONE`
    heals it.

    Faults strike what leaves through the port; ``both_ways``: also what comes back over its cable.
    """

    at_ns: int
    port: str
    faults: Faults
    both_ways: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.at_ns, int) or self.at_ns < 0:
            raise UserError(
                f"a fault at {self.port} is to strike at_ns={self.at_ns!r}; that is a whole number "
                "of ns after the start, 0 or more"
            )
        if not isinstance(self.faults, Faults):
            raise UserError(
                f"the faults of {self.port} are {self.faults!r}; make them with Faults(loss=...), "
                "or NONE to heal"
            )


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """The continuation of a :class:`Trial` after GPUs were lost, over the memories as they are.

    Buffers that ``expected`` names are spoiled before, but for those that are ``kept``: all others
    are as in a new process.
    """

    compile: Callable[..., Sequence[Schedule]]
    inputs: Callable[[int], Contents]
    expected: Callable[[int], Contents]
    kept: Collection[str] = ()


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One line of the table: a collective of one size, run ``warmups`` + ``iterations`` times.

    ``compile`` makes the schedules of all ranks.  ``inputs(rank)`` is what a rank's buffers
    hold at the start of every iteration, ``expected(rank)`` what they must hold, octet for octet,
    at its end; buffers named by ``expected`` are poisoned before each iteration, so that a transfer
    that never happened cannot pass for one that did.  Both are called for one rank at a time, and
    ``expected`` again after every iteration. So the contents of all GPUs never exist twice: what
    takes long to make and is the same for all ranks, a scenario keeps.  ``memory_bytes`` is about
    what a GPU's buffers take on average, so that a size beyond the machine is refused before
    anything is compiled.  ``facts`` go into the row as they are.  ``tolerance(rank)`` is how far
    each element of a buffer may be from what is expected; buffers that it does not name must be
    equal.  Without ``checked`` nothing is compared, and the row states it.

    ``collective`` may be the name of any traffic pattern.  ``transport`` and ``switch`` are what
    this row needs of them, such as ``"spray=reps"`` or ``"deep:trim=off"``; the rest is the user's
    choice, and the user cannot contradict them (:mod:`emulator.run.plan.stages`).  ``faults``
    befall every iteration that counts, and are healed after it; warm-ups are spared.  So do
    ``fault_clauses``, in the words of :mod:`emulator.run.faults.grammar`, such as
    ``"t=90us gpu h1g0 dead"``; with them an iteration without them runs first.  ``fresh``:
    the endpoints begin anew before this row, with nothing learned from those before it.

    ``recover`` is called after GPUs were lost, with the executions so far. It returns what follows
    (:mod:`emulator.run.measurement`), or raises UserError if the job cannot go on.  Without it the
    run fails then.

    ``victims`` are flows, as pairs of ranks, that are only there to see what the others do to them:
    no measure counts their messages but those of ``Outcome.victims``.

    ``observe`` returns what ``measures`` needs of a GPU that only the process which has the GPU
    knows.  It is called after each iteration that counts, and what it returns can be pickled.

    ``warnings`` are sentences for the user, which the result has and the table ends with.

    ``drive`` makes the operations while the execution goes on, with the run folder for what it
    writes: schedules have none then (:mod:`emulator.workers.open_execution`).  ``room_octets`` of
    each GPU's memory are for it, of which what is not used costs nothing.  ``executed`` returns
    what the timeline shows of it.
    """

    collective: str
    size_bytes: int
    compile: Callable[..., Sequence[Schedule]]
    inputs: Callable[[int], Contents]
    expected: Callable[[int], Contents]
    tolerance: Callable[[int], Contents] | None = None
    checked: bool = True
    memory_bytes: int = 0
    warmups: int = 1
    iterations: int = 1
    facts: Mapping[str, Any] = field(default_factory=dict)
    transport: str = ""
    switch: str = ""
    faults: Sequence[FaultAt] = ()
    fault_clauses: Sequence[str] = ()
    fresh: bool = False
    victims: Collection[tuple[int, int]] = ()
    recover: Callable[[Sequence[JobExecution]], Resumption] | None = None
    observe: Callable[[GpuExecution], object] | None = None
    warnings: Sequence[str] = ()
    drive: Callable[[OpenExecution, Path], None] | None = None
    room_octets: int = 0
    executed: Callable[[], tuple[Sequence[Schedule], Sequence[RankResult]]] | None = None

    @property
    def name(self) -> str:
        """The row in a sentence."""
        return f"{self.collective} of {self.size_bytes} B"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The measurements of a trial's iterations (warm-ups excluded).

    ``times_ns`` holds each iteration's fabric time from the common start until the last rank was
    done; ``ideal_ns`` is the lower bound of :mod:`emulator.run.measures.ideal`; ``counters`` are
    the changes of the endpoints' counters, summed over all ranks, and ``endpoints`` the same by
    rank. ``iterations`` are the messages of each iteration, and ``ports`` what every port counted,
    by ``node:port``. ``queues`` is the depth of their queues over time, and ``wire`` what the
    transport spends on each packet.  The messages of the trial's victims are not among
    ``iterations``, but among ``victims``.  ``executions`` are those of the last iteration: one, and
    one more after each interruption.  ``observed`` has for each of ``iterations`` what
    ``Trial.observe`` returned, by rank.
    """

    times_ns: tuple[int, ...]
    ideal_ns: float
    wrong: int
    counters: Mapping[str, int]
    endpoints: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    iterations: Sequence[Iteration] = ()
    victims: Sequence[Iteration] = ()
    executions: Sequence[JobExecution] = ()
    observed: Sequence[Mapping[int, object]] = ()
    ports: Mapping[str, PortRecord] = field(default_factory=dict)
    queues: Mapping[str, QueueSeries] = field(default_factory=dict)
    wire: WireCost | None = None

    @property
    def mean_ns(self) -> float:
        """Return the mean time of an iteration (ns)."""
        return sum(self.times_ns) / len(self.times_ns)

    @property
    def received_bytes(self) -> float | None:
        """Return the octets of payload that arrived over the fabric in an iteration.

        They are those of the counters of all endpoints; None if the endpoints have no such counter.
        """
        received = self.counters.get("rx_message_octets")
        return None if received is None else received / len(self.times_ns)


@dataclass(frozen=True)
class MeasuredTrial:
    """What the metrics of a row are computed of (:class:`emulator.metrics.Metric`)."""

    topology: Topology
    trial: Trial
    outcome: Outcome
    transport: TransportChoice


class ReadableKind(Protocol):
    """A kind of parameter: ``read`` makes its value of the text of the parameter ``field``.

    It raises TopologyError or UserError for a text that is none.
    """

    def read(self, field: str, value: str, /) -> object:
        """Return the value that ``value`` states."""


def parameter(
    default: object,
    kind: ReadableKind | None = None,
    *,
    help: str,
    choices: Sequence[str] | Callable[[], Sequence[str]] = (),
    many: bool = False,
    aliases: Sequence[str] = (),
) -> Any:
    """A field of ``Parameters``: a value of ``kind``, or one of the words in ``choices``.

    These may be a function, which is called when they are needed: words that users can add to.
    With ``many`` the field is a tuple, written with commas between its values.  Users may write
    one of ``aliases`` for its name.
    """
    if (kind is None) == (not choices):
        raise TypeError("a parameter has either a kind or choices")
    metadata: dict[str, object] = {"kind": kind, "help": help, "many": many}
    metadata["choices"] = choices if callable(choices) else lambda: choices
    metadata["aliases"] = tuple(aliases)
    return dataclasses.field(default=default, metadata=metadata)


def refuse_idle(parameters: Any, names: Iterable[str], reason: str) -> None:
    """Raise UserError if one of ``names`` is not at its default, where it changes nothing.

    ``reason`` says why, such as ``beside sizes``.
    """
    for item in dataclasses.fields(parameters):
        if item.name in names and getattr(parameters, item.name) != item.default:
            raise UserError(f"{item.name} changes nothing {reason}: leave it out")


def parameter_lines(kind: Any) -> str:
    """Return a line for each field of ``kind``: name, default as a user writes it, meaning."""
    lines = []
    for item in dataclasses.fields(kind):
        values = item.default if isinstance(item.default, tuple) else (item.default,)
        form = getattr(item.metadata["kind"], "format", str)
        texts = (one if isinstance(one, str) else form(one).replace(" ", "") for one in values)
        given = f"{item.name}={','.join(texts)}"
        lines.append(f"  {given:<24} {item.metadata['help']}")
    return "\n".join(lines)


def parameter_values(kind: Any, scenario: str, given: Mapping[str, str]) -> dict[str, object]:
    """Return the values of ``given`` by the names of the fields of ``kind``.

    Each is read in the unit of its kind.  Raises UserError, which names ``scenario``.
    """
    fields = {item.name: item for item in dataclasses.fields(kind)}
    names = {alias: name for name, item in fields.items() for alias in _aliases(item)}
    values: dict[str, object] = {}
    stated: dict[str, str] = {}
    for written, text in given.items():
        name = names.get(written, written)
        if stated.setdefault(name, written) != written:
            raise UserError(f"{stated[name]} and {written} are one parameter; keep one of them")
        if (item := fields.get(name)) is None:
            hint = f"{meant(name, fields)}; it takes {', '.join(fields)}"
            raise UserError(f"scenario {scenario} has no parameter {name!r}{hint}")
        values[name] = _read(item, text)
    return values


#: What a scenario has.
NEEDED = ("Parameters", "topology", "schedules", "measures")


class Scenario:
    """A loaded scenario; every call into it turns an exception into one sentence.

    ``module`` is a module, or an object with the same four names in ``file``.
    """

    def __init__(self, module: Any, name: str, file: str | None = None) -> None:
        self.module = module
        self.name = name
        self._file = where = getattr(module, "__file__", None) or file or name
        missing = [
            requested for requested in NEEDED if not callable(getattr(module, requested, None))
        ]
        if missing:
            raise UserError(
                f"{where} is no scenario: it lacks {' and '.join(missing)}; a scenario has a "
                "dataclass Parameters and functions topology, schedules and measures"
            )
        if not dataclasses.is_dataclass(module.Parameters):
            raise UserError(f"{where}: Parameters must be a frozen dataclass; add @dataclass")
        for item in dataclasses.fields(module.Parameters):
            if "kind" not in item.metadata:
                raise UserError(
                    f"{where}: parameter {item.name} has no kind; make it with "
                    "emulator.scenario.parameter()"
                )

    @property
    def title(self) -> str:
        """The first line of the docstring."""
        return (self.module.__doc__ or self.name).strip().splitlines()[0].rstrip(".")

    def sheet(self) -> str:
        """Return the docstring, and a line for each parameter with its default and meaning."""
        text = inspect.cleandoc(self.module.__doc__ or self.name).replace("\n\n::\n\n", "\n\n")
        return f"{text}\n\n{self.name} takes:\n{parameter_lines(self.module.Parameters)}"

    def takes(self, parameter_name: str) -> bool:
        """Return whether the scenario has a parameter of that name."""
        return parameter_name in {item.name for item in dataclasses.fields(self.module.Parameters)}

    def parameters(self, given: Mapping[str, str]) -> Any:
        """``Parameters`` with the values of ``given``, each read in the unit of its kind."""
        values = parameter_values(self.module.Parameters, self.name, given)
        return self._call("Parameters", **values)

    def topology(self, parameters: Any) -> str | Topology:
        """Return the fabric that the scenario runs on: a specification or a topology."""
        fabric: str | Topology = self._call("topology", parameters)
        if not isinstance(fabric, str | Topology):
            raise self._misfit("topology", fabric, "a specification such as rail_clos")
        return fabric

    def capture(self, parameters: Any, topology: Topology) -> str | None:
        """The ports to capture that the scenario names, if it does."""
        if not callable(getattr(self.module, "capture", None)):
            return None
        chosen = self._call("capture", parameters, topology)
        if not isinstance(chosen, str):
            raise self._misfit("capture", chosen, "ports such as rail0:down0,rail0:up0")
        return chosen

    def schedules(self, parameters: Any, topology: Topology, seed: int) -> list[Trial]:
        """Return the trials of the scenario, at least one."""
        trials = self._call("schedules", parameters, topology, seed)
        if not isinstance(trials, Sequence) or not all(isinstance(one, Trial) for one in trials):
            raise self._misfit("schedules", trials, "a list of Trial")
        if not trials:
            raise UserError(f"scenario {self.name} has nothing to run with these parameters")
        latest = LatestSchedules()
        return [
            dataclasses.replace(
                trial,
                compile=latest.of(
                    self._guarded("compile", trial.compile),
                    source=trial.compile,
                ),
                inputs=self._guarded("inputs", trial.inputs),
                expected=self._guarded("expected", trial.expected),
                tolerance=trial.tolerance and self._guarded("tolerance", trial.tolerance),
                recover=trial.recover and self._guarded("recover", trial.recover),
                observe=trial.observe and self._guarded("observe", trial.observe),
            )
            for trial in trials
        ]

    def measures(
        self, parameters: Any, topology: Topology, trial: Trial, outcome: Outcome
    ) -> Mapping[str, Any]:
        """Return the scenario's own values of a trial, by result key."""
        row: Mapping[str, Any] = self._call("measures", parameters, topology, trial, outcome)
        if not isinstance(row, Mapping):
            raise self._misfit("measures", row, "a dict of values by result key")
        for key, value in row.items():
            try:
                json.dumps({key: value}, allow_nan=False)
            except (TypeError, ValueError):
                raise UserError(
                    f"{self._file}: measures tells {key} = {value!r}, which result.json cannot "
                    "hold; return finite numbers, texts, or None"
                ) from None
        return row

    def _misfit(self, function: str, value: object, requested: str) -> UserError:
        return UserError(
            f"{self._file}: {function} returned {type(value).__name__}; return {requested}"
        )

    def _call(self, function: str, *args: object, **named: object) -> Any:
        return self._guarded(function, getattr(self.module, function))(*args, **named)

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, of which any exception becomes one sentence."""

        def call(*args: object, **named: object) -> Any:
            try:
                return function(*args, **named)
            except (UserError, TopologyError):
                raise
            except Exception as error:  # whatever a user's file may raise
                raise UserError(plugins.trouble(self._file, name, error)) from error

        return call


@dataclass(frozen=True, kw_only=True)
class ScenarioEntry:
    """A scenario of a user's file by ``name``: ``form`` has what a scenario's module has."""

    name: str
    form: Any

    @property
    def meaning(self) -> str:
        """The first line of the form's docstring."""
        return (self.form.__doc__ or "").strip().partition("\n")[0]

    @property
    def parameters(self) -> type | None:
        """The form's ``Parameters``."""
        kind: type | None = getattr(self.form, "Parameters", None)
        return kind


#: Scenarios that users' files register; a file that is a scenario has the name of the file.
SCENARIOS: Registry[ScenarioEntry] = Registry("scenario")


def names() -> list[str]:
    """List the scenarios, those of users included."""
    return sorted({*_modules(), *_users()})


def _users() -> dict[str, tuple[Any, str]]:
    """Return the scenarios of users' files by name, each with where it stands."""
    found = {
        name: (entry.form, SCENARIOS.place(name).partition(", line ")[0])
        for name, entry in SCENARIOS.items()
    }
    for plugin in plugins.loaded():
        if plugin.named and all(hasattr(plugin.module, name) for name in NEEDED):
            found.setdefault(plugin.path.stem, (plugin.module, str(plugin.path)))
    for name in found.keys() & _modules().keys():
        raise UserError(f"{found[name][1]}: there already is a scenario {name!r}; rename this one")
    return found


def _modules() -> dict[str, str]:
    """Find each scenario in ``scenarios`` and its rooms: a module, or ``module:attribute``.

    A room with scenarios has ``HOLDS_SCENARIOS = True`` in its ``__init__.py``; others are
    libraries.  ``SEVERAL`` of ``scenarios`` names the files whose attributes are scenarios.
    """
    package = importlib.import_module("scenarios")
    rooms = [package]
    for found in pkgutil.iter_modules(package.__path__):
        if found.ispkg:
            room = importlib.import_module(f"scenarios.{found.name}")
            if getattr(room, "HOLDS_SCENARIOS", False):
                rooms.append(room)
    modules: dict[str, str] = {}
    for file, several in package.SEVERAL.items():
        modules.update({name: f"scenarios.{file}:{name}" for name in several})
    for room in rooms:
        for found in pkgutil.iter_modules(room.__path__):
            if found.ispkg or found.name in package.SEVERAL:
                continue
            module = f"{room.__name__}.{found.name}"
            if found.name in modules:
                raise UserError(
                    f"two scenarios are called {found.name}: {modules[found.name]} and {module}; "
                    "rename one of the files"
                )
            modules[found.name] = module
    return modules


#: Names that scenarios had before, which are still understood.
_FORMER = {"onset": "fairness"}


def load(name_or_path: str, others: Iterable[str] = ()) -> Scenario:
    """The scenario called ``name_or_path``, or the one in that file.

    ``others`` are names that the caller knows beside them, for the sentence that lists all.

    Raises :class:`UserError` with one sentence if there is none, or if its file cannot be used.
    """
    if name_or_path.endswith(".py") or "/" in name_or_path:
        return _from_file(Path(name_or_path))
    name = name_or_path.replace("-", "_")
    name = _FORMER.get(name, name)
    if (user := _users().get(name)) is not None:
        return Scenario(user[0], name, user[1])
    modules = _modules()
    if name not in modules:
        known = sorted({*modules, *_users(), *others})
        here = Path(f"{name_or_path}.py")
        hint = f"; for the file in this directory write ./{here}" if here.exists() else ""
        raise UserError(
            f"there is no scenario {name_or_path!r}{meant(name, known)}{hint}; "
            f"known are {', '.join(known)}, or give the path of a .py file"
        )
    module_name, _, attribute = modules[name].partition(":")
    spec = importlib.util.find_spec(module_name)
    origin = (spec.origin if spec else None) or module_name
    module = plugins.import_guarded(origin, lambda: importlib.import_module(module_name))
    return Scenario(getattr(module, attribute) if attribute else module, name, origin)


def _from_file(path: Path) -> Scenario:
    if not path.is_file():
        raise UserError(f"there is no scenario file {path}; give the path of a .py file")
    return Scenario(plugins.load(path), path.stem)


def _aliases(item: dataclasses.Field[Any]) -> tuple[str, ...]:
    aliases: tuple[str, ...] = item.metadata.get("aliases", ())
    return aliases


def _read(item: dataclasses.Field[Any], text: str) -> object:
    kind: ReadableKind | None = item.metadata["kind"]
    choices: tuple[str, ...] = tuple(item.metadata["choices"]())

    def one(word: str) -> object:
        if kind is not None:
            return kind.read(item.name, word)
        if word not in choices:
            raise UserError(
                f"{item.name} is {word!r}{meant(word, choices)}; choose one of {', '.join(choices)}"
            )
        return word

    if not item.metadata["many"]:
        return one(text.strip())
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UserError(f"{item.name} is empty; write one or more values with commas between")
    return tuple(one(word) for word in words)
