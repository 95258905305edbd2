"""The other end of a connection, through rdma-core: one queue pair of a device that verbs know.

By itself it writes and sends to a ``uetemu hca target`` that listens, and reads back::

    python -m tests.system.interop.verbs_peer OWN_ADDRESS HOST
"""

import json
import socket
import sys
import time
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from pyverbs import enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

DEVICE, PORT = "rxe0", 1
COUNTERS = Path(f"/sys/class/infiniband/{DEVICE}/ports/{PORT}/hw_counters")
_ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE
    | e.IBV_ACCESS_REMOTE_WRITE
    | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_REMOTE_ATOMIC
)
_MTUS = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}  # enum ibv_mtu
_WORK = 64
#: Names of verbs' completion statuses.
STATUSES = {
    getattr(e, name): name.removeprefix("IBV_WC_")
    for name in dir(e)
    if name.startswith("IBV_WC_") and (name.endswith("_ERR") or name == "IBV_WC_SUCCESS")
}


def counters() -> dict[str, int]:
    """Return what the device has counted, by name."""
    return {
        path.name: int(path.read_text()) for path in COUNTERS.iterdir() if path.name != "lifespan"
    }


class VerbsPeer:
    """A queue pair with one memory region of ``size`` octets.

    ``address`` chooses the GID, ``mtu`` is the path MTU; its retry timer is 4.096 us * 2^timeout.
    """

    def __init__(self, address: str, *, mtu: int, size: int, psn: int, timeout: int) -> None:
        self.address, self.mtu, self.size, self.psn = address, mtu, size, psn
        self._timeout = timeout
        self._context = Context(name=DEVICE)
        self._pd = PD(self._context)
        self._cq = CQ(self._context, 4 * _WORK)
        self._mr = MR(self._pd, size, _ACCESS)
        cap = QPCap(max_send_wr=_WORK, max_recv_wr=_WORK, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=cap, sq_sig_all=1)
        self._qp = QP(self._pd, init)
        attributes = self._attributes()
        self._qp.to_init(attributes)
        self._next = 0

    def close(self) -> None:
        for thing in (self._qp, self._mr, self._cq, self._pd, self._context):
            thing.close()

    # -- the connection ------------------------------------------------------------------------

    @staticmethod
    def _attributes() -> QPAttr:
        attributes = QPAttr(port_num=PORT)
        attributes.pkey_index = 0
        attributes.qp_access_flags = _ACCESS
        return attributes

    def _gid_index(self) -> int:
        requested = ip_address(self.address)
        for index in range(16):
            gid: Any = ip_address(str(self._context.query_gid(PORT, index)))
            if requested in (gid, gid.ipv4_mapped):
                return index
        raise LookupError(f"{DEVICE} has no GID of {self.address}")

    def card(self) -> dict[str, object]:
        return {
            "gid": str(self._context.query_gid(PORT, self._gid_index())),
            "qpn": self._qp.qp_num,
            "psn": self.psn,
            "mtu": self.mtu,
            "rkey": self._mr.rkey,
            "vaddr": self._mr.buf,
            "length": self.size,
        }

    def connect(self, card: Mapping[str, Any]) -> None:
        """To RTS, toward the owner of that card."""
        ip = ip_address(card["address"])
        gid = f"::ffff:{ip}" if ip.version == 4 else str(ip)
        whole = ip_address(gid).exploded
        route = GlobalRoute(dgid=GID(whole), sgid_index=self._gid_index(), hop_limit=64)
        attributes = self._attributes()
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=PORT)
        attributes.dest_qp_num = card["qpn"]
        attributes.rq_psn = card["psn"]
        attributes.sq_psn = self.psn
        attributes.path_mtu = _MTUS[min(self.mtu, card["mtu"])]
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 16
        attributes.min_rnr_timer = 12
        attributes.timeout = self._timeout
        # Soft-RoCE counts a NAK that tells of progress like any other, so that with loss a few in
        # a row end the queue pair; 7 is "for ever" to it, and the tests have a budget of their own.
        attributes.retry_cnt = 7
        attributes.rnr_retry = 7
        self._qp.to_rts(attributes)

    def meet_at(self, host: str, port: int, budget: float = 60.0) -> dict[str, Any]:
        """Exchange cards with one that listens, and connect; the peer's card."""
        give_up = time.monotonic() + budget
        while True:
            try:
                there = socket.create_connection((host, port), timeout=budget)
                break
            except ConnectionRefusedError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)
        with there, there.makefile("rwb") as lines:
            lines.write(json.dumps(self.card()).encode() + b"\n")
            lines.flush()
            card: dict[str, Any] = json.loads(lines.readline())
        self.connect(card)
        return card

    def meet_on(self, listener: socket.socket) -> dict[str, Any]:
        """Exchange cards with one that connects; ready to receive before it knows."""
        there, _ = listener.accept()
        with there, there.makefile("rwb") as lines:
            card: dict[str, Any] = json.loads(lines.readline())
            self.connect(card)
            lines.write(json.dumps(self.card()).encode() + b"\n")
            lines.flush()
        return card

    # -- memory --------------------------------------------------------------------------------

    def put(self, at: int, octets: bytes) -> None:
        self._mr.write(octets, len(octets), at)

    def get(self, at: int, length: int) -> bytes:
        return bytes(self._mr.read(length, at))

    # -- work ----------------------------------------------------------------------------------

    def receive(self, at: int, length: int) -> None:
        """Offer a part of the region to a message."""
        sge = SGE(self._mr.buf + at, length, self._mr.lkey)
        self._qp.post_recv(RecvWR(wr_id=at, num_sge=1, sg=[sge]))

    def _post(self, opcode: int, at: int, length: int, **more: Any) -> SendWR:
        self._next += 1
        return SendWR(
            wr_id=self._next,
            opcode=opcode,
            num_sge=1,
            sg=[SGE(self._mr.buf + at, length, self._mr.lkey)],
            send_flags=e.IBV_SEND_SIGNALED,
            **more,
        )

    def send(self, at: int, length: int, immediate: int | None = None) -> None:
        if immediate is None:
            work = self._post(e.IBV_WR_SEND, at, length)
        else:
            work = self._post(e.IBV_WR_SEND_WITH_IMM, at, length, imm_data=socket.htonl(immediate))
        self._qp.post_send(work)

    def write(
        self, at: int, length: int, rkey: int, address: int, immediate: int | None = None
    ) -> None:
        if immediate is None:
            work = self._post(e.IBV_WR_RDMA_WRITE, at, length)
        else:
            work = self._post(
                e.IBV_WR_RDMA_WRITE_WITH_IMM, at, length, imm_data=socket.htonl(immediate)
            )
        work.set_wr_rdma(rkey, address)
        self._qp.post_send(work)

    def read(self, at: int, length: int, rkey: int, address: int) -> None:
        work = self._post(e.IBV_WR_RDMA_READ, at, length)
        work.set_wr_rdma(rkey, address)
        self._qp.post_send(work)

    def fetch_add(self, at: int, operand: int, rkey: int, address: int) -> None:
        work = self._post(e.IBV_WR_ATOMIC_FETCH_AND_ADD, at, 8)
        work.set_wr_atomic(rkey, address, operand, 0)
        self._qp.post_send(work)

    def compare_swap(self, at: int, compare: int, swap: int, rkey: int, address: int) -> None:
        work = self._post(e.IBV_WR_ATOMIC_CMP_AND_SWP, at, 8)
        work.set_wr_atomic(rkey, address, compare, swap)
        self._qp.post_send(work)

    def completions(self, requested: int, budget: float = 60.0) -> list[dict[str, Any]]:
        """Return so many completions, in their order: receives and work alike."""
        found: list[dict[str, Any]] = []
        give_up = time.monotonic() + budget
        while len(found) < requested:
            _, done = self._cq.poll(requested - len(found))
            for wc in done:
                found.append(
                    {
                        "id": wc.wr_id,
                        "status": STATUSES.get(wc.status, wc.status),
                        "length": wc.byte_len,
                        "immediate": socket.ntohl(wc.imm_data)
                        if wc.wc_flags & e.IBV_WC_WITH_IMM
                        else None,
                        "with_write": wc.opcode == e.IBV_WC_RECV_RDMA_WITH_IMM,
                    }
                )
            if not done:
                if time.monotonic() > give_up:
                    raise TimeoutError(f"{len(found)} of {requested} completions came: {found}")
                time.sleep(0.002)
        return found


def main(own: str, host: str) -> None:
    """A WRITE, a READ of what it wrote and a SEND, of 3000 octets each."""
    peer = VerbsPeer(own, mtu=1024, size=1 << 16, psn=0, timeout=18)
    card = peer.meet_at(host, 18516)
    octets = bytes(range(250)) * 12
    peer.put(0, octets)
    peer.write(0, 3000, card["rkey"], card["vaddr"])
    peer.read(4096, 3000, card["rkey"], card["vaddr"])
    peer.send(0, 3000)
    statuses = [wc["status"] for wc in peer.completions(3)]
    print(*statuses, "as written" if peer.get(4096, 3000) == octets else "DIFFERENT")  # noqa: T201
    peer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
