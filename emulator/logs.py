"""Logs of the command line: what is built, started, tried and removed, on standard error.

``uetemu -v`` shows steps, ``-vv`` details.  ``UETEMU_LOG`` selects the same by words: a level
(``info``, ``debug``), or ``LOGGER=LEVEL`` for some of the rooms, parted by commas
(``info,emulator.dataplane.control_plane=debug``).  Nothing on the way of a frame writes a log.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

from emulator.errors import UserError

VARIABLE: Final = "UETEMU_LOG"
LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
#: Loggers whose levels are set here; all others of this process stay as they are.
ROOTS: Final = ("emulator", "scenarios", "topologies", "uet")
_FORM: Final = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"


def configure(verbosity: int, requested: str = "") -> None:
    """Log to standard error by ``verbosity`` (0 to 2) and the text of ``UETEMU_LOG``.

    Raises UserError for a text that is no level and names none.
    """
    levels = _levels(requested)
    if verbosity:
        levels.setdefault("", logging.INFO if verbosity == 1 else logging.DEBUG)
    if not levels:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORM, "%H:%M:%S"))
    everywhere = levels.pop("", logging.WARNING)
    for root in ROOTS:
        logger = plain_logger(root)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(everywhere)
    for name, level in levels.items():
        plain_logger(name).setLevel(level)


def _levels(requested: str) -> dict[str, int]:
    """Read ``UETEMU_LOG``: logger -> level; the empty name stands for all of them."""
    levels: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in requested.split(","))):
        name, equals, word = part.rpartition("=")
        if equals and name.split(".")[0] not in ROOTS:
            raise UserError(
                f"{VARIABLE}: {part!r} names no logger of uetemu; names begin with "
                f"{', '.join(ROOTS)}"
            )
        if word.lower() not in LEVELS:
            raise UserError(
                f"{VARIABLE}: {part!r} is no level; give one of {', '.join(LEVELS)}, alone or as "
                "LOGGER=LEVEL"
            )
        levels[name] = LEVELS[word.lower()]
    return levels


def plain_logger(name: str) -> logging.Logger:
    """Return the logger ``name``, which has no level and no handler of its own.

    Mininet, once imported, makes every new logger one of its class, and that has both.
    """
    usual = logging.getLoggerClass()
    logging.setLoggerClass(logging.Logger)
    try:
        return logging.getLogger(name)
    finally:
        logging.setLoggerClass(usual)
