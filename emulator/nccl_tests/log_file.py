"""A file with the output of a test: the table or ``-J`` of nccl-tests, or ``-Z`` of rccl-tests."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from emulator import packed_file
from emulator.errors import UserError
from emulator.nccl_tests import json_log, rccl_output, text_log
from emulator.nccl_tests.cluster_log import ClusterLog

#: Octets that a log has at most: with NCCL's own messages it has a few million.
LARGEST_LOG_BYTES = 64 * 2**20
#: Octets of JSON or CSV: every value takes many times as much memory.
LARGEST_JSON_BYTES = 16 * 2**20


def read(path: Path) -> ClusterLog:
    """Return the log at ``path``; UserError, one sentence, if it cannot be read."""
    octets = packed_file.content(path, most=LARGEST_LOG_BYTES)
    try:
        text = packed_file.text_of(octets)
    except UnicodeDecodeError:
        text = octets.decode("utf-8-sig", "replace")  # what a program printed in between
    if rccl_output.recognises(text):
        reader = rccl_output.read
    elif text.lstrip()[:1] == "{":
        reader = json_log.read
    else:
        return text_log.read(str(path), StringIO(text))
    if len(octets) > LARGEST_JSON_BYTES:
        raise UserError(
            f"{path} has more than {LARGEST_JSON_BYTES // 2**20} MiB of results; cut it to one "
            "test, or give what the test printed"
        )
    return reader(str(path), text)
