"""The queue pairs between GPUs, computed alike at every end, as nobody exchanges them.

Stands for the exchange that connection managers, or a job's launcher, do out of band.  All ends are
given the same list of addresses and the same seed.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

from emulator.rocev2.hca_config import Connection
from emulator.rocev2.wire.rocev2_codes import PSN_MASK

#: QP numbers start behind those of special meaning, each endpoint's somewhere else.
_FIRST_QPN, _FIRST_QPN_BITS = 0x100, 20
#: Seeds of people are below this many bits.
_LIFE_SHIFT = 64


def full_mesh(
    addresses: Sequence[str], own: int, qps: int, seed: int, life: int = 0
) -> Mapping[str, tuple[Connection, ...]]:
    """The ``qps`` connections from ``addresses[own]`` to every other address.

    Those of another ``life`` of all endpoints have other numbers, and so other paths.
    """
    seed += life << _LIFE_SHIFT
    bases = [_base(place, seed) for place in range(len(addresses))]
    return {
        peer: tuple(
            Connection(
                local_qpn=bases[own] + place * qps + number,
                remote_qpn=bases[place] + own * qps + number,
                first_psn=_psn(seed, own, place, number),
                expected_psn=_psn(seed, place, own, number),
            )
            for number in range(qps)
        )
        for place, peer in enumerate(addresses)
        if place != own
    }


@lru_cache(maxsize=2**14)  # every endpoint asks for those of all
def _base(place: int, seed: int) -> int:
    return _FIRST_QPN + random.Random(f"qpn {seed} {place}").getrandbits(_FIRST_QPN_BITS)


def _psn(seed: int, source: int, destination: int, number: int) -> int:
    return zlib.crc32(b"%d %d %d %d" % (seed, source, destination, number)) & PSN_MASK
