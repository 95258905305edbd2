"""The time that NICs take, by ``--nic NAME``: from a doorbell to the wire, and to a completion.

Without a profile NICs take no time.  With one, a write is handed to the transport once the NIC has
seen its doorbell and has fetched what it sends, and the GPU learns of what has arrived, or was
acknowledged, a while later::

    GPU: doorbell -- fetch --> first packet ~~ fabric ~~> last packet -- completion --> GPU: goes on

Retransmissions, ACKs and packets behind the first take the fabric's time alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

#: The word for NICs that take no time.
NONE: Final = "none"
_PS: Final = 1000
_BITS_PS: Final = 8 * 10**9 * _PS


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of a profile, how it is known, and where from.

    ``measured``: somebody measured that NIC.  ``document``: it follows from a specification.
    ``fitted``: on a measurement of more than the NIC.  ``guess``: no source was found.
    """

    value: int
    known: Literal["measured", "document", "fitted", "guess"]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NicProfile:
    """The times (ns) of a NIC.

    ``doorbell_ns``: from the doorbell of a write to its first packet, if its data are in the work
    request, as up to ``inline_octets`` are.  ``fetch_ns``: what reading larger ones over PCIe adds.
    ``completion_ns``: from the last packet, or the last acknowledgement, until the GPU knows.
    ``message_gap_ps``: between two writes at least, the inverse of the message rate.  ``pcie_bps``:
    the rate at which data are fetched.  The NIC has the contexts of ``cached_qps`` queue pairs, the
    last ones in use, and ``miss_ns`` is what fetching another one adds to the write that needs it.
    """

    doorbell_ns: Constant
    inline_octets: Constant
    fetch_ns: Constant
    completion_ns: Constant
    message_gap_ps: Constant
    pcie_bps: Constant
    cached_qps: Constant
    miss_ns: Constant

    @property
    def times(self) -> NicTimes:
        """Return the profile's numbers."""
        return NicTimes(
            self.doorbell_ns.value,
            self.inline_octets.value,
            self.fetch_ns.value,
            self.completion_ns.value,
            self.message_gap_ps.value,
            self.pcie_bps.value,
            self.cached_qps.value,
            self.miss_ns.value,
        )


@dataclass(frozen=True, slots=True)
class NicTimes:
    """The numbers of a :class:`NicProfile`; with ``qps_each`` queue pairs to each peer.

    Where data go through host memory (:mod:`emulator.sim.endpoint.nic.host_staging`) copies to and
    from there share ``staging_bps``, and each takes ``staging_ns`` more.
    """

    doorbell_ns: int
    inline_octets: int
    fetch_ns: int
    completion_ns: int
    message_gap_ps: int
    pcie_bps: int
    cached_qps: int
    miss_ns: int
    qps_each: int = 1
    staging_bps: int = 0
    staging_ns: int = 0

    def before_wire_ps(self, octets: int) -> int:
        """Return the time from the doorbell of a write of ``octets`` to its first packet."""
        fetch = self.fetch_ns if octets > self.inline_octets else 0
        return (self.doorbell_ns + fetch) * _PS

    def occupied_ps(self, octets: int) -> int:
        """Return for how long a write of ``octets`` keeps the NIC from beginning the next one."""
        return max(self.message_gap_ps, -(-octets * _BITS_PS // self.pcie_bps))

    def staged_ps(self, octets: int) -> int:
        """Return for how long the copy of ``octets`` keeps others from host memory."""
        return -(-octets * _BITS_PS // self.staging_bps)

    def one_way_ns(self, octets: int) -> int:
        """Return what the NICs of both ends add to a write of ``octets``."""
        return self.before_wire_ps(octets) // _PS + self.completion_ns


#: A NIC that takes no time, has each context, and is never waited for.
NO_TIMES: Final = NicTimes(0, 0, 0, 0, 0, 10**18, 1 << 60, 0)
_INLINE = Constant(220, "measured", "perftest prints 'Max inline data : 220[B]' on mlx5")
PCIE5 = Constant(
    461_000_000_000,
    "document",
    "PCIe 5.0 x16: 16 x 32 GT/s, 128b/130b, 24 octets of each TLP of 256 for its header",
)
_QPS = Constant(
    450,
    "measured",
    "StaR (ICNP 2021; second-hand, valkey-io/valkey#477): fewer connections keep the peak rate of "
    "an RNIC of 2021",
)
_QPS_AS = Constant(450, "guess", "as cx7, whose model is not named there either")
READ_NS = Constant(900, "guess", "fetch_ns of cx7: a read over PCIe")
_HALF = "no latency of one direction was found; "

_THOR2 = NicProfile(
    doorbell_ns=Constant(
        1_500,
        "guess",
        _HALF + "GPU-initiated loopback of 1 KiB, post to CQE, takes 22.5 us (ROCm-XIO, "
        "docs/reference/performance.rst), most of it the GPU's",
    ),
    inline_octets=Constant(0, "measured", "perftest prints 'Max inline data : 0[B]'"),
    fetch_ns=Constant(900, "guess", "as cx7"),
    completion_ns=Constant(1_000, "guess", "as doorbell_ns"),
    message_gap_ps=Constant(10_000, "guess", "100 million messages a second"),
    pcie_bps=PCIE5,
    cached_qps=_QPS_AS,
    miss_ns=READ_NS,
)

PROFILES: Mapping[str, NicProfile] = {
    "cx7": NicProfile(
        doorbell_ns=Constant(
            800,
            "measured",
            "ib_write_lat over RoCE, ConnectX-7 of two DGX Sparks on a cable: 1.47 us for 2 octets "
            "(eugr/spark-vllm-docker, docs/NETWORKING.md); how both ends share it is a guess",
        ),
        inline_octets=_INLINE,
        fetch_ns=Constant(
            900,
            "measured",
            "ib_write_lat, mlx5 at HDR: 2.87 us for 256 octets, 1.96 us for 128, which are inline",
        ),
        completion_ns=Constant(660, "measured", "the rest of doorbell_ns's 1.47 us"),
        message_gap_ps=Constant(3_000, "guess", "330 million messages a second"),
        pcie_bps=PCIE5,
        cached_qps=_QPS,
        miss_ns=READ_NS,
    ),
    "thor2": _THOR2,
    "pollara": replace(
        _THOR2,
        doorbell_ns=Constant(
            1_500,
            "guess",
            _HALF + "GPU-initiated loopback of 1 KiB, post to CQE, takes 15.0 us (ROCm-XIO, as "
            "thor2), most of it the GPU's",
        ),
    ),
    "mrc800": NicProfile(
        doorbell_ns=Constant(
            2_140,
            "fitted",
            "arXiv 2605.04333, cluster B: 5.09 us for 2 octets below one T0, of which cables take "
            "1.20 us here; how both ends share the rest is a guess",
        ),
        inline_octets=_INLINE,
        fetch_ns=Constant(900, "guess", "as cx7"),
        completion_ns=Constant(1_750, "fitted", "the rest of doorbell_ns's 5.09 us"),
        message_gap_ps=Constant(3_000, "guess", "as cx7"),
        pcie_bps=Constant(
            922_000_000_000, "document", "PCIe 6.0 x16: twice PCIe 5.0's, headers as there"
        ),
        cached_qps=_QPS_AS,
        miss_ns=READ_NS,
    ),
}


def times_of(name: str) -> NicTimes | None:
    """Return the times of profile ``name``; None of :data:`NONE`."""
    return None if name == NONE else PROFILES[name].times


def meanings() -> dict[str, str]:
    """Return what each profile takes, in ns, by its name; * marks a guess."""
    found = {}
    for name, profile in PROFILES.items():
        known = [
            f"{label} {each.value}{'*' if each.known == 'guess' else ''}"
            for label, each in (
                ("doorbell to wire", profile.doorbell_ns),
                ("fetch", profile.fetch_ns),
                ("packet to completion", profile.completion_ns),
                ("queue pair that is not cached", profile.miss_ns),
                ("cached", profile.cached_qps),
            )
        ]
        found[name] = ", ".join(known)
    return found


def describe() -> str:
    """Return the profiles for ``--help``."""
    lines = (f"  {name}: {meaning}" for name, meaning in meanings().items())
    return "\n".join(("NICs (--nic), times in ns, * a guess:", *lines))
