"""The keys that an endpoint really uses, where ``uetemu decode`` finds them beside its capture."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from emulator.errors import UserError
from uet.tss.secure_domain import SecureDomain


def write_keys(path: Path, domains: Iterable[SecureDomain]) -> None:
    """Write ``domains`` as a key file that only its owner reads, in place of an older one.

    Raises :class:`UserError`.
    """
    text = json.dumps([domain.as_data() for domain in domains], indent=2)
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; choose another place for --pcap"
        ) from None
