"""Model servers on the servers with GPUs, which users reach over the frontend."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from emulator.cluster.services.llm import llm_server
from emulator.cluster.services.service_registry import ServiceKind, ServicePlace, register
from topologies.cluster.machine_networks import MODEL_PORT
from topologies.model import FRONTEND

#: Of the frontend's time, in seconds, unless the user says otherwise.
TTFT_S, ITL_S = 0.020, 0.005


def _command(place: ServicePlace) -> Sequence[str]:
    ttft_s = float(place.parameters["ttft"]) * place.dilation
    itl_s = float(place.parameters["itl"]) * place.dilation
    return (
        *(sys.executable, "-m", llm_server.__name__, place.address, str(MODEL_PORT)),
        *("--ttft", f"{ttft_s:g}", "--itl", f"{itl_s:g}"),
    )


LLM = register(
    ServiceKind(
        name="llm",
        summary="stand-in for a model server, with OpenAI's HTTP API",
        network=FRONTEND,
        machines=lambda machines: machines.servers,
        command=_command,
        port=MODEL_PORT,
        parameters={"ttft": TTFT_S, "itl": ITL_S},
    )
)
