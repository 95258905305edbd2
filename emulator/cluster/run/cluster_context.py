"""The running cluster as a scenario sees it: machines to work on, networks to look at."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulator.cluster.cluster_lab import ClusterLab
from emulator.cluster.run.processes import await_ready, last_words, printed, release
from emulator.cluster.services.machine_map import MachineMap
from emulator.cluster.services.service_runner import Services
from emulator.dataplane.capture.sniffer import wait_idle
from emulator.dataplane.lab import Lab
from emulator.errors import UserError
from emulator.run.faults.fault_injector import FaultInjector
from emulator.run.faults.live_injection import change_of
from emulator.whole_file import whole_file
from topologies import catalogue

INTERVAL_S = 0.25


@dataclass(frozen=True, kw_only=True)
class NetworkSample:
    """``octets`` and ``drops`` of all ports of ``network`` since the run began, at ``at_s``."""

    at_s: float
    network: str
    octets: int
    drops: int


@dataclass(frozen=True, kw_only=True)
class ClusterEvent:
    """Something that the scenario did, ``at_s`` after the run began."""

    at_s: float
    text: str


#: What storage carries, as a scenario names it.
WORKS = DATASET_STREAMING, CHECKPOINT_WRITE, CHECKPOINT_RESTORE, MODEL_DISTRIBUTION = (
    *("dataset streaming", "checkpoint write"),
    *("checkpoint restore", "model distribution"),
)


@dataclass(frozen=True, kw_only=True)
class ClusterWork:
    """One of :data:`WORKS`, and when it was done by the machine's clock, as captures have it."""

    work: str
    begin_ns: int
    end_ns: int


class NetworkSamples:
    """Samples of every network of ``cluster`` that keeps the host's clock, in a thread.

    Times are in seconds of the machine.
    """

    def __init__(self, cluster: ClusterLab) -> None:
        self._labs = cluster.labs
        #: The thread's own, as a netlink socket answers one question at a time.
        self._watched = {name: Lab.attach(lab.name) for name, lab in cluster.labs.items()}
        self._began = time.monotonic()
        self._first = _counted(self._labs)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.samples: list[NetworkSample] = []
        self.events: list[ClusterEvent] = []
        self.works: list[ClusterWork] = []
        self._thread.start()

    @property
    def now_s(self) -> float:
        """Return the time since the run began (s)."""
        return time.monotonic() - self._began

    def event(self, text: str) -> None:
        self.events.append(ClusterEvent(at_s=self.now_s, text=text))

    def end(self) -> None:
        """Take the last sample and stop."""
        self._ended.set()
        self._thread.join()
        for lab in self._watched.values():
            lab.close()

    def write(self, path: Path) -> None:
        """Write all samples as CSV."""
        with whole_file(path) as fresh, fresh.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("at_s", "network", "octets", "drops"))
            for one in self.samples:
                writer.writerow((f"{one.at_s:.3f}", one.network, one.octets, one.drops))

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return the octets and drops of each network since the run began."""
        return {
            network: (octets - self._first[network][0], drops - self._first[network][1])
            for network, (octets, drops) in _counted(self._labs).items()
        }

    def total_rows(self) -> Iterator[Mapping[str, object]]:
        """Yield a row of a result for each network, of what it has carried until now."""
        for network, (octets, drops) in self.totals().items():
            yield {"what": f"octets of {network}", "octets": octets, "drops": drops}

    def port_octets(self, network: str) -> Mapping[str, int]:
        """Return what each port of ``network`` has sent since its lab was built."""
        counters = self._labs[network].counters()
        return {port: counted.tx_bytes for port, counted in counters.items()}

    def _sample(self) -> None:
        while True:
            last = self._ended.wait(INTERVAL_S)
            at_s = self.now_s
            for network, (octets, drops) in _counted(self._watched).items():
                first = self._first[network]
                self.samples.append(
                    NetworkSample(
                        at_s=at_s,
                        network=network,
                        octets=octets - first[0],
                        drops=drops - first[1],
                    )
                )
            if last:
                return


def _counted(labs: Mapping[str, Lab]) -> dict[str, tuple[int, int]]:
    """Return the octets and drops of all ports of each of ``labs`` since it was built."""
    found = {}
    for network, lab in labs.items():
        counters = lab.counters().values()
        octets = sum(one.tx_bytes for one in counters)
        drops = sum(one.data.drops + one.control.drops + one.tx_dropped for one in counters)
        found[network] = octets, drops
    return found


#: What a client may take of the machine's time (s) before it counts as hung.
CLIENT_S = 300.0
#: A capture is given this long (s) to write what it has seen.
DRAIN_S = 30.0
#: The field of a task whose client waits until it is released.
HELD = "held"
UETEMU = "from emulator.cli.main import main; main()"


class FabricRun:
    """A run of a scenario of the fabric, beside the cluster."""

    def __init__(self, scenario: str, folder: Path, process: subprocess.Popen[str]) -> None:
        self._scenario, self.folder, self._process = scenario, folder, process

    def end(self) -> None:
        """Interrupt the run, if it has not ended, and wait until it has removed its fabric."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.communicate()

    def result(self) -> Any:
        """Wait for its end and return ``result.json``; UserError with its reason if it failed."""
        printed(self._scenario, self._process, CLIENT_S)
        return json.loads((self.folder / "result.json").read_text())


@dataclass(frozen=True, kw_only=True)
class ClusterContext:
    """One run: ``folder`` takes what it leaves behind, ``seed`` is that of all its choices.

    ``captured``: all ports of runs in virtual time are captured as well.
    """

    cluster: ClusterLab
    services: Services
    samples: NetworkSamples
    folder: Path
    seed: int
    captured: bool = False
    fabric_runs: list[FabricRun] = field(default_factory=list)

    @property
    def machines(self) -> MachineMap:
        return MachineMap(self.cluster.backend.topology)

    def dilation(self, network: str) -> float:
        return self.cluster.labs[network].dilation

    def event(self, text: str) -> None:
        self.samples.event(text)

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        """Note the time of the block as that of a work, whose octets captures have."""
        begin_ns = time.time_ns()
        yield
        ended = ClusterWork(work=name, begin_ns=begin_ns, end_ns=time.time_ns())
        self.samples.works.append(ended)

    def execute(self, machine: str, argv: Sequence[str], *, timeout_s: float = CLIENT_S) -> str:
        """Run a command on ``machine`` to its end and return what it printed.

        Raises UserError with its last words if it fails or takes longer than ``timeout_s``.
        """
        name = f"{Path(argv[0]).name} on {machine}"
        try:
            done = self.cluster.lab_of(machine).exec(machine, argv, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise UserError(f"{name} has not ended after {timeout_s:g} s") from None
        if done.returncode:
            raise UserError(f"{name} failed: {last_words(done.stderr)}")
        return done.stdout

    def client(self, machine: str, module: str, given: Mapping[str, object]) -> Any:
        """Run the Python ``module`` on ``machine`` with ``given`` as JSON; return its JSON."""
        argv = [sys.executable, "-m", module, json.dumps(given)]
        return json.loads(self.execute(machine, argv))

    def started(
        self, machine: str, argv: Sequence[str], *, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        """Start a command on ``machine``; whoever reads its output has to end it."""
        process: subprocess.Popen[str] = self.cluster.lab_of(machine).popen(
            machine,
            argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return process

    def begin(
        self, machine: str, module: str, given: Mapping[str, object]
    ) -> subprocess.Popen[str]:
        """Start the Python ``module`` on ``machine`` with ``given`` as JSON.

        A client that is ``held`` has a pipe as standard input: a line of it lets it begin.
        """
        argv = [sys.executable, "-m", module, json.dumps(given)]
        stdin = subprocess.PIPE if given.get(HELD) else subprocess.DEVNULL
        return self.started(machine, argv, stdin=stdin)

    def begin_fabric_run(
        self, scenario: str, *options: str, name: str | None = None, topology: str | None = None
    ) -> FabricRun:
        """Begin ``uetemu run`` of ``scenario``, in virtual time.

        It has a fabric of its own, beside the cluster: of ``topology``, by default the backend's.
        Its folder is ``name`` in this run's, by default that of the scenario.
        """
        folder = self.folder / (name or scenario)
        argv = [sys.executable, "-c", UETEMU, "run", scenario, "--format", "json"]
        argv += ["--topology", topology or catalogue.spec_of(self.cluster.backend.topology)]
        argv += ["--seed", str(self.seed), "--output", str(folder), *options]
        argv += ["--capture", "all"] if self.captured else []
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.fabric_runs.append(FabricRun(scenario, folder, process))
        return self.fabric_runs[-1]

    def fabric_run(self, scenario: str, *options: str, topology: str | None = None) -> Any:
        """Run ``scenario`` as :meth:`begin_fabric_run` does and return its result."""
        return self.begin_fabric_run(scenario, *options, topology=topology).result()

    def together(
        self,
        module: str,
        tasks: Mapping[str, Mapping[str, object]],
        *,
        timeout_s: float = CLIENT_S,
    ) -> dict[str, Any]:
        """Run ``module`` on all machines of ``tasks`` at once; return what each printed as JSON.

        Raises UserError with the last words of the first that fails; the others are ended.
        """
        begun = {machine: self.begin(machine, module, given) for machine, given in tasks.items()}
        return dict(self.gathered(begun, timeout_s=timeout_s))

    def gathered(
        self,
        begun: Mapping[str, subprocess.Popen[str]],
        *,
        timeout_s: float = CLIENT_S,
        released: Callable[[], None] | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """Await the clients that have ``begun``; yield each machine and what it printed as JSON.

        With ``released`` they are held: once all are ready it is called, and they are released.
        """
        began = time.monotonic()
        try:
            if released is not None:
                for machine, process in begun.items():
                    await_ready(f"the client on {machine}", process, timeout_s)
                released()
                for process in begun.values():
                    release(process)
            for machine, process in begun.items():
                waited_s = time.monotonic() - began
                out = printed(f"the client on {machine}", process, timeout_s, waited_s=waited_s)
                yield machine, json.loads(out)
        finally:
            for process in begun.values():
                if process.poll() is None:
                    process.kill()
                    process.communicate()

    def strike(self, network: str, fault: str) -> None:
        """Apply ``fault`` to ``network``, in the words of ``uetemu inject``."""
        lab = self.cluster.labs[network]
        injector = FaultInjector(lab)
        injector.apply(change_of(lab, fault)(injector.condition))
        self.event(f"{network}: {fault}")

    @contextmanager
    def watched(self, node: str, name: str, condition: str = "") -> Iterator[Path]:
        """Capture what passes all ports of ``node`` during the block, into a pcap file.

        ``condition`` is a filter of tcpdump.  The file is ``name``.pcap of the folder.
        """
        path = self.folder / f"{name}.pcap"
        argv = [
            "tcpdump",
            "--immediate-mode",
            "-i",
            "any",
            "-n",
            "-U",
            "-w",
            str(path),
            *condition.split(),
        ]
        lab = self.cluster.lab_of(node)
        with lab.popen(
            node, argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            while line and "listening on" not in line:
                line = process.stderr.readline()
            if not line:
                raise UserError(f"tcpdump on {node} did not start; run uetemu doctor")
            try:
                yield path
            finally:
                wait_idle(process, DRAIN_S)  # it writes what it has been given
                process.terminate()
                process.communicate()
