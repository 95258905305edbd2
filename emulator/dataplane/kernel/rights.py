"""What a container keeps from root, and how it is given back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

#: What of root's rights the work on namespaces, links, queues and packet sockets takes (Linux
#: capability.h).
CAPABILITIES = {"NET_ADMIN": 12, "NET_RAW": 13, "SYS_ADMIN": 21}
MODEL = "--fabric model of uetemu run, which takes no rights"
_ALL_USERS = ["0", "0", str(2**32 - 1)]


def withheld() -> str | None:
    """Return what root lacks in this process and who gives it; None if nothing is known of."""
    if Path("/proc/self/uid_map").read_text().split() != _ALL_USERS:
        return (
            "root of a user namespace has no rights to the kernel's networks: run as root of the "
            "machine (a container: neither rootless nor unprivileged)"
        )
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    effective = int(status["CapEff"], 16)
    lacking = [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]
    if not lacking:
        return None
    options = " ".join(f"--cap-add {name}" for name in lacking)
    return (
        f"root has not the capability {' nor '.join(lacking)} here: give it to the container "
        f"({options}, or --privileged)"
    )


def way_out(refusal: str) -> str | None:
    """Return what mends the kernel's ``refusal`` if that is a container's doing, else None."""
    if os.strerror(errno.EROFS) in refusal:
        return (
            "/proc/sys is read-only here, as containers have it: start the container with "
            f"--privileged, or take {MODEL}"
        )
    if any(os.strerror(code) in refusal for code in (errno.EPERM, errno.EACCES)):
        way = withheld() or (
            "the container forbids it (seccomp or AppArmor): start it with --privileged"
        )
        return f"{way}, or take {MODEL}"
    return None
