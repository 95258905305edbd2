"""Addresses of messages within a peer (UES 3.4.1): job, process and resource."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Addressing fields of a request.

    With ``relative`` addressing PIDonFEP counts the processes of the job on that endpoint and
    the JobID must be theirs; without, PIDonFEP is the endpoint's own and the JobID authorises.
    """

    job_id: int = 1
    pid_on_fep: int = 0
    resource_index: int = 15
    relative: bool = True

    def __post_init__(self) -> None:
        for name, bits in (("job_id", 24), ("pid_on_fep", 12), ("resource_index", 12)):
            value = getattr(self, name)
            if not 0 <= value < 1 << bits:
                raise ValueError(f"{name} is {value}; it must lie in 0..{(1 << bits) - 1}")
