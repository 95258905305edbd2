"""Model servers on the servers with GPUs, which users reach over the frontend."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from emulator.cluster.services.llm import llm_server
from emulator.cluster.services.service_registry import KINDS, ServiceKind, ServicePlace
from topologies.cluster import MODEL_PORT
from topologies.model import FRONTEND
from topologies.registry import parameter

#: Of the frontend's time, in seconds, unless the user says otherwise.
TTFT_S, ITL_S = 0.020, 0.005


@dataclass(frozen=True, kw_only=True)
class AnswerTimes:
    ttft: float = parameter(TTFT_S, help="time to the first token (s)")
    itl: float = parameter(ITL_S, help="time between tokens (s)")


def _command(place: ServicePlace) -> Sequence[str]:
    ttft_s = float(place.parameters["ttft"]) * place.dilation
    itl_s = float(place.parameters["itl"]) * place.dilation
    return (
        *(sys.executable, "-m", llm_server.__name__, place.address, str(MODEL_PORT)),
        *("--ttft", f"{ttft_s:g}", "--itl", f"{itl_s:g}"),
    )


LLM = KINDS.register(
    ServiceKind(
        name="llm",
        meaning="stand-in for a model server, with OpenAI's HTTP API",
        network=FRONTEND,
        machines=lambda machines: machines.servers,
        command=_command,
        port=MODEL_PORT,
        parameters=AnswerTimes,
    )
)
