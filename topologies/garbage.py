"""Work during which Python looks for no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the collector from going through objects of which none is garbage, but many are there.

    So it is where millions are made, and where frames pass endpoints.  It goes on afterwards, if it
    did before.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
