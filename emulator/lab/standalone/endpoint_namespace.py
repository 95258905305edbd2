"""The network namespace that the endpoint lives in."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from emulator.dataplane.kernel import namespaces
from emulator.errors import UserError


def enter_namespace(name: str) -> None:
    """Move this process's only thread into a namespace, by its name or the path of its file."""
    path = Path(name) if "/" in name else namespaces.DIRECTORY / name
    try:
        namespaces.enter(path)
    except FileNotFoundError:
        there = sorted(os.listdir(namespaces.DIRECTORY)) if namespaces.DIRECTORY.is_dir() else []
        known = f"there are {', '.join(there[:8])}" if there else "there is none"
        raise UserError(f"there is no network namespace {name!r}; {known}") from None
    except PermissionError:
        raise UserError(f"only root may enter the namespace {name}; run as root") from None
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.EINVAL:
            reason = "it is no network namespace"
        raise UserError(f"cannot enter {name}: {reason}; give the name ip netns lists") from None
