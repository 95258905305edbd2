"""The Redfish service: ``python -m`` this module with ``CLUSTER ADDRESS PORT``.

Resources: the service root, the collection of systems, each system with its power state, and the
action ``ComputerSystem.Reset`` with On, ForceOff, GracefulShutdown and ForceRestart (DSP0266,
schema ComputerSystem).  There is no session and no password: the network is the cluster's own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from emulator.cluster.services.json_exchange import answer_json, json_body
from emulator.cluster.services.redfish.power import OFF, ON, ServerPower
from emulator.errors import UserError
from topologies.model import MANAGEMENT

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
    """The answers to one client."""

    server: RedfishServer
    timeout = PATIENCE_S
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with a resource."""
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
