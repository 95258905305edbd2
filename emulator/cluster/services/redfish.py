"""The Redfish service: ``python -m`` this module with ``CLUSTER ADDRESS PORT``.

Resources: the service root, the collection of systems, each system with its power state, and the
action ``ComputerSystem.Reset`` with On, ForceOff, GracefulShutdown and ForceRestart (DSP0266,
schema ComputerSystem).  There is no session and no password: the network is the cluster's own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from emulator.cluster.cluster_lab import ClusterLab
from emulator.cluster.services.json_exchange import answer_json, json_body
from emulator.dataplane.lab import Lab
from emulator.errors import UserError
from emulator.run.faults.fault_injector import recorded
from emulator.run.faults.live_injection import inject
from topologies.model import MANAGEMENT

ON, OFF = "On", "Off"


class ServerPower:
    """The power of every machine of the running cluster ``name``.

    The management network keeps its cables: a server's own controller stays reachable when it is
    off, and so does this service.
    """

    def __init__(self, name: str, kept: str) -> None:
        self.name = name
        self._kept = kept
        with ClusterLab.attach(name) as cluster:
            self.gpus = {server.name: server.gpus for server in cluster.backend.topology.servers}
            nodes = (node.name for lab in cluster.labs.values() for node in lab.topology.gpus)
            of_servers = {gpu for gpus in self.gpus.values() for gpu in gpus}
            self.machines = tuple(dict.fromkeys(n for n in nodes if n not in of_servers))

    def state(self, machine: str) -> str:
        """Return ``On`` or ``Off``: whether any cable of ``machine`` has its carrier."""
        with ClusterLab.attach(self.name) as cluster:
            pulled = [
                link in recorded(lab.name, lab.topology).dead
                for lab, node in self._ends(cluster, machine)
                for link, _, _ in lab.topology.neighbours(node)
            ]
        return OFF if pulled and all(pulled) else ON

    def switch(self, machine: str, state: str) -> None:
        """Put ``machine`` into ``state``.  Raises UserError if the cluster is gone."""
        verb = "down" if state == OFF else "up"
        with ClusterLab.attach(self.name) as cluster:
            for lab, node in self._ends(cluster, machine):
                inject(lab, f"nic {node} {verb}")

    def _ends(self, cluster: ClusterLab, machine: str) -> Iterator[tuple[Lab, str]]:
        """Yield the labs and nodes whose cables lose their carrier with ``machine``."""
        for network, lab in cluster.labs.items():
            if network == self._kept:
                continue
            for node in (machine, *self.gpus.get(machine, ())):
                if node in lab.topology.by_name:
                    yield lab, node


ROOT = "/redfish/v1"
RESETS: Mapping[str, tuple[str, ...]] = {
    "On": (ON,),
    "ForceOff": (OFF,),
    "GracefulShutdown": (OFF,),
    "ForceRestart": (OFF, ON),
}
LONGEST_BODY = 1 << 16  # octets
PATIENCE_S = 30.0


class RedfishHandler(BaseHTTPRequestHandler):
    server: RedfishServer
    timeout = PATIENCE_S
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = self.path.rstrip("/").removeprefix(ROOT).strip("/").split("/")
        power = self.server.power
        if not self.path.startswith("/redfish"):
            self._refuse(HTTPStatus.NOT_FOUND, f"resources are below {ROOT}")
        elif self.path.rstrip("/") == "/redfish":
            self._answer({"v1": f"{ROOT}/"})
        elif parts == [""]:
            self._answer(
                {
                    "@odata.id": f"{ROOT}/",
                    "@odata.type": "#ServiceRoot.v1_5_0.ServiceRoot",
                    "Id": "RootService",
                    "Name": f"cluster {power.name}",
                    "RedfishVersion": "1.6.0",
                    "Systems": {"@odata.id": f"{ROOT}/Systems"},
                }
            )
        elif parts == ["Systems"]:
            members = [{"@odata.id": f"{ROOT}/Systems/{name}"} for name in power.machines]
            self._answer(
                {
                    "@odata.id": f"{ROOT}/Systems",
                    "@odata.type": "#ComputerSystemCollection.ComputerSystemCollection",
                    "Name": "Computer System Collection",
                    "Members@odata.count": len(members),
                    "Members": members,
                }
            )
        elif len(parts) == 2 and parts[0] == "Systems" and parts[1] in power.machines:
            self._answer(self._system(parts[1]))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no resource {self.path}")

    def do_POST(self) -> None:
        """Carry out a reset of a system."""
        parts = self.path.rstrip("/").removeprefix(ROOT).strip("/").split("/")
        action = "Actions/ComputerSystem.Reset"
        body = json_body(self, LONGEST_BODY)
        known = len(parts) == 4 and parts[0] == "Systems" and parts[1] in self.server.power.machines
        if not known or "/".join(parts[2:]) != action:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no action {self.path}")
            return
        states = RESETS.get(str(body.get("ResetType"))) if body is not None else None
        if states is None:
            self._refuse(HTTPStatus.BAD_REQUEST, f"ResetType is one of {', '.join(RESETS)}")
            return
        try:
            for state in states:
                self.server.power.switch(parts[1], state)
        except UserError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
            return
        self.send_response(HTTPStatus.NO_CONTENT)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _system(self, name: str) -> dict[str, object]:
        place = f"{ROOT}/Systems/{name}"
        return {
            "@odata.id": place,
            "@odata.type": "#ComputerSystem.v1_5_0.ComputerSystem",
            "Id": name,
            "Name": name,
            "SystemType": "Physical",
            "PowerState": self.server.power.state(name),
            "Actions": {
                "#ComputerSystem.Reset": {
                    "target": f"{place}/Actions/ComputerSystem.Reset",
                    "ResetType@Redfish.AllowableValues": list(RESETS),
                }
            },
        }

    def _refuse(self, status: HTTPStatus, stated: str) -> None:
        self._answer({"error": {"code": "Base.1.0.GeneralError", "message": stated}}, status)

    def _answer(self, content: Mapping[str, object], status: HTTPStatus = HTTPStatus.OK) -> None:
        text = json.dumps(content, indent=2).encode() + b"\n"
        answer_json(self, text, status, {"OData-Version": "4.0"})


class RedfishServer(ThreadingHTTPServer):
    """The service at an address, for the machines of one cluster."""

    def __init__(self, power: ServerPower, address: str, port: int) -> None:
        self.power = power
        super().__init__((address, port), RedfishHandler)


def main(cluster: str, address: str, port: str) -> None:
    """Serve until the process is ended."""
    server = RedfishServer(ServerPower(cluster, kept=MANAGEMENT), address, int(port))
    sys.stdout.write(f"Redfish at http://{address}:{port}{ROOT}/\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
