"""Records of operations from their posting to their completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from uet.api.flags import ApiError, Flag
from uet.transport import Completion


class Poster(Protocol):
    """An endpoint that operations are posted to."""

    def completed(self, posted: Posted, completion: Completion) -> None:
        """Report the end of ``posted``."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class Posted:
    """An operation under way; it is the context that the FEP gives back."""

    endpoint: Poster
    op_context: object
    #: of its completion
    flags: Flag
    #: memory of a receive
    buf: memoryview | None = None
    #: injected ones complete in silence, unless they fail
    silent: bool = False
    #: multi-receive: least space for another message, octets taken, and octets completed
    least_space: int | None = None
    taken: int = 0
    done: int = 0


def octets(buf: object) -> memoryview:
    """``buf`` as a flat view of octets, without a copy; :class:`ApiError` if it cannot be."""
    try:
        view = memoryview(buf)  # type: ignore[arg-type]
        return view.cast("B")
    except TypeError:
        raise ApiError(
            f"a buffer is contiguous memory such as a bytearray or an array, not {buf!r}"
        ) from None
