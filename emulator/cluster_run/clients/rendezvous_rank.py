"""A rank that checks in at a rendezvous: ``python -m ...rendezvous_rank JSON``.

It takes its number from a counter, tells where it can be reached, waits for all others, and asks
where the first one is: what a job does before its first exchange.
"""

from __future__ import annotations

import json
import sys
import time

from emulator.services.rendezvous.store_client import RendezvousClient


def check_in(address: str, port: int, own: str, ranks: int) -> dict[str, object]:
    """Check in at the store and return the rank, the master's address and the time taken (s)."""
    began = time.monotonic()
    with RendezvousClient(address, port) as store:
        rank = store.add("ranks", 1) - 1
        store.set(f"address/{rank}", own)
        store.barrier("start", ranks)
        master = store.get("address/0")
    return {"rank": rank, "master": master, "took_s": time.monotonic() - began}


if __name__ == "__main__":
    json.dump(check_in(**json.loads(sys.argv[1])), sys.stdout)
