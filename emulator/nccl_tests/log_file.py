"""A file with the output of nccl-tests: its table, or the JSON of ``-J``."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from emulator.errors import UserError
from emulator.nccl_tests import json_log, text_log
from emulator.nccl_tests.cluster_log import ClusterLog

#: Octets that a log has at most: with NCCL's own messages it has a few million.
LARGEST_LOG_BYTES = 64 * 2**20
#: Octets of JSON: every value takes many times as much memory.
LARGEST_JSON_BYTES = 16 * 2**20


def read(path: Path) -> ClusterLog:
    """Return the log at ``path``; UserError, one sentence, if it cannot be read."""
    try:
        with path.open("rb") as stream:
            octets = stream.read(LARGEST_LOG_BYTES + 1)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; give a file with the output of nccl-tests"
        ) from None
    if len(octets) > LARGEST_LOG_BYTES:
        raise UserError(
            f"{path} has more than {LARGEST_LOG_BYTES // 2**20} MiB; cut it to the lines of one "
            "test of nccl-tests"
        )
    text = octets.decode("utf-8-sig", "replace")
    if text.lstrip()[:1] == "{":
        if len(octets) > LARGEST_JSON_BYTES:
            raise UserError(
                f"{path} has more than {LARGEST_JSON_BYTES // 2**20} MiB of JSON; cut its results, "
                "or give what the test printed"
            )
        return json_log.read(str(path), text)
    return text_log.read(str(path), StringIO(text))
