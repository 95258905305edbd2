"""The services of a running cluster: started, awaited, watched, and listed.

Each lives in its machine's namespace, so it ends with the lab, whoever removes that.  What it
prints is in ``services/<service>@<machine>/log`` of the lab's directory, beside what it reads and
writes.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from emulator.cluster.cluster_lab import ClusterLab
from emulator.cluster.services.machine_map import MachineMap
from emulator.cluster.services.service_plan import PlannedService, ServiceKind, ServicePlace
from emulator.dataplane.lab_record import Process
from emulator.dataplane.settings import Progress
from emulator.errors import UserError
from emulator.logs import plain_logger
from emulator.whole_file import write_whole

_log = plain_logger(__name__)

DIRECTORY = "services"
RECORD = "services.json"
LOG = "log"
#: What a service may take until it answers (s).
READY_S = 60.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.2
LAST_WORDS = 3  # lines of its log, of a service that died
CONNECT_S = 1.0
MOST_NAMED = 4  # machines in a line


@dataclass(frozen=True, kw_only=True)
class ServiceRecord:
    """A service that was started: its name, where it answers, and its process."""

    name: str
    machine: str
    address: str
    port: int | None
    process: Process

    @property
    def kind(self) -> str:
        return self.name.partition("@")[0]

    @property
    def alive(self) -> bool:
        return self.process.alive


class Services:
    """The services of one cluster, of this process or found in the records of its lab."""

    def __init__(self, directory: Path, records: Iterable[ServiceRecord] = ()) -> None:
        self.directory = directory
        self.records = list(records)

    @classmethod
    def start(
        cls,
        cluster: ClusterLab,
        planned: Iterable[PlannedService],
        progress: Progress | None = None,
    ) -> Services:
        """Start ``planned`` services and return when all of them answer.

        Raises UserError, which has its last words, for one that ends or does not answer.
        """
        backend = cluster.backend
        services = cls(backend.directory)
        machines = MachineMap(backend.topology)
        todo = list(planned)
        for number, one in enumerate(todo):
            folder = services.folder(one.name)
            folder.mkdir(parents=True, exist_ok=True)
            place = ServicePlace(
                cluster=cluster.name,
                machine=one.machine,
                address=one.address,
                directory=folder,
                machines=machines,
                seed=backend.seed,
                dilation=_dilation(cluster, one),
                parameters=one.parameters,
            )
            process = _started(cluster, one, place)
            services.records.append(
                ServiceRecord(
                    name=one.name,
                    machine=one.machine,
                    address=one.address,
                    port=one.kind.port,
                    process=process,
                )
            )
            services._write()
            if progress is not None:
                progress(number + 1, 2 * len(todo), f"service {one.name}")
        for number, record in enumerate(services.records):
            services._await(record, partial(cluster.lab_of(record.machine).inside, record.machine))
            if progress is not None:
                progress(len(todo) + number + 1, 2 * len(todo), f"service {record.name} answers")
        return services

    @classmethod
    def of_lab(cls, directory: Path) -> Services:
        try:
            rows: list[dict[str, Any]] = json.loads((directory / RECORD).read_text())
        except FileNotFoundError:
            rows = []
        return cls(
            directory,
            [ServiceRecord(**{**row, "process": Process(**row["process"])}) for row in rows],
        )

    def folder(self, name: str) -> Path:
        return self.directory / DIRECTORY / name

    def of_kind(self, kind: ServiceKind) -> list[ServiceRecord]:
        """Return the services of ``kind``, in the order in which they were started."""
        return [record for record in self.records if record.kind == kind.name]

    def died(self) -> list[str]:
        """Return a sentence for each service that has died, with its last words."""
        return [
            f"service {record.name} has died; {self._last_words(record)}"
            for record in self.records
            if not record.alive
        ]

    def check_alive(self) -> None:
        """Raise UserError, which names it and has its last words, if a service has died."""
        for stated in self.died():
            raise UserError(stated)

    def save(self, folder: Path) -> None:
        for record in self.records:
            target = folder / DIRECTORY / record.name
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.folder(record.name) / LOG, target / LOG)

    def lines(self) -> Iterator[str]:
        """Yield a line for each kind, with the machines that it runs on."""
        machines: dict[str, list[str]] = {}
        for record in self.records:
            machines.setdefault(record.kind, []).append(record.machine)
        for kind, names in machines.items():
            listed = ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} nodes"
            yield f"service {kind}: {listed}"

    def rows(self) -> list[Mapping[str, object]]:
        """Return every service as JSON types, with its state."""
        return [
            {
                "service": record.name,
                "address": record.address,
                "port": record.port,
                "pid": record.process.pid,
                "state": "running" if record.alive else "dead",
                "log": str(self.folder(record.name) / LOG),
            }
            for record in self.records
        ]

    def _await(self, record: ServiceRecord, inside: Callable[[Callable[[], bool]], bool]) -> None:
        deadline, pause = time.monotonic() + READY_S, SHORTEST_PAUSE_S
        while True:
            if not record.alive:
                raise UserError(f"service {record.name} did not start; {self._last_words(record)}")
            if record.port is None or inside(lambda: _answers(record)):
                return
            if time.monotonic() > deadline:
                raise UserError(
                    f"service {record.name} does not answer at {record.address}:{record.port} "
                    f"after {READY_S:g} s; {self._last_words(record)}"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _last_words(self, record: ServiceRecord) -> str:
        log = self.folder(record.name) / LOG
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return f"the last it printed: {' / '.join(lines[-LAST_WORDS:]) or 'nothing'} ({log})"

    def _write(self) -> None:
        rows = [
            {
                "name": record.name,
                "machine": record.machine,
                "address": record.address,
                "port": record.port,
                "process": {"pid": record.process.pid, "start": record.process.start},
            }
            for record in self.records
        ]
        write_whole(self.directory / RECORD, json.dumps(rows, indent=2) + "\n")


def _started(cluster: ClusterLab, planned: PlannedService, place: ServicePlace) -> Process:
    argv = list(planned.kind.command(place))
    _log.info("start service %s: %s", planned.name, " ".join(argv))
    with (place.directory / LOG).open("wb") as printed:
        process = cluster.lab_of(planned.machine).popen(
            planned.machine,
            argv,
            cwd=place.directory,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt of the terminal is ours to handle
        )
    found = Process.of(process.pid)
    return found if found is not None else Process(process.pid, 0)


def _dilation(cluster: ClusterLab, planned: PlannedService) -> float:
    network = planned.kind.network
    return 1.0 if network is None else cluster.labs[network].dilation


def _answers(record: ServiceRecord) -> bool:
    """Return whether something accepts connections at the service's port."""
    try:
        with socket.create_connection((record.address, record.port or 0), timeout=CONNECT_S):
            return True
    except OSError:
        return False
