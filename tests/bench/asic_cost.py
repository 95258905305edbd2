"""Measure what the program costs per packet: ``python -m tests.bench.asic_cost``.

One process blasts 4 KiB packets over a cable with the fabric's HTB; the same loop with the program
detached and attached in turn, so that both see the same machine: the median of the differences in
processor time.  The kernel's own account of a run (BPF statistics) stands beside it, from a loop of
its own, as it costs, too.

Then a routed hop, in by one port and out by another, with the program for the host's clock and with
that for a virtual one: the median of the ratios.
"""

import os
import re
import secrets
import statistics
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import IPv4Network

from emulator.dataplane.kernel.programs import bpf_syscall as kernel
from emulator.dataplane.settings import Clock
from emulator.dataplane.switch.balancing import Balancing, LoadBalancing
from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.switch_program import Size, SwitchProgram
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.switch.switch_profile import port_settings
from tests.harness.asic.port_bench import FAR, NEAR, Bench, profile, shape, udp
from tests.system.asic.test_balancing import Router, packets

PACKETS, ROUNDS = 3_000, 81
RATE = 100e9
SIZE = 4096
CLOCKS: tuple[Clock, Clock] = ("host", "virtual")
ENABLE_STATS = 32


def blast(bench: Bench | Router, frame: bytes) -> float:
    """Nanoseconds of processor time per packet."""
    send = bench.out.send
    start = time.process_time_ns()
    for _ in range(PACKETS):
        send(frame)
    return (time.process_time_ns() - start) / PACKETS


def in_program(bench: Bench | Router, frame: bytes, name: str = asic_program.EGRESS) -> float:
    """Nanoseconds per run of a program, by the kernel's own account."""
    statistics_handle = kernel.bpf(ENABLE_STATS, struct.pack("=I", 0), "statistics")
    try:
        blast(bench, frame)
        pin = asic_program.pins_of(bench.program.lab) / "programs" / name
        shown = subprocess.run(
            ["bpftool", "prog", "show", "pinned", str(pin)], capture_output=True, text=True
        ).stdout
    finally:
        os.close(statistics_handle)
    found = re.search(r"run_time_ns (\d+) run_cnt (\d+)", shown)
    assert found is not None
    return int(found[1]) / int(found[2])


def arrival(bench: Bench, method: Balancing) -> None:
    """Balance what arrives at the far end, over eight hops."""
    way = LoadBalancing(method=method, flowlet_gap_ns=10_000)
    settings = port_settings(profile(), rate_bps=RATE, dilation=1, seed=1, balancing=way)
    ports.configure(bench.program, FAR, settings)
    ports.set_route(bench.program, 0, IPv4Network("10.0.0.0/24"), range(20, 28))
    ports.attach(bench.far.kernel, FAR, bench.program, subject="far")
    bench.far.kernel.flush()


def main() -> None:
    lab = f"t{secrets.token_hex(5)}"
    cases: dict[str, Callable[[Bench], None]] = {
        "queue and ECN": lambda bench: bench.configure(profile("deep"), rate_bps=RATE),
        "and all faults": lambda bench: bench.configure(
            profile("deep"),
            rate_bps=RATE,
            faults=Faults(loss=1e-6, burst_begin=1e-6, corruption=1e-6, duplication=1e-6),
        ),
        # a link that carries nothing: from the first packets on, each is trimmed and sent anew
        "every packet trimmed": lambda bench: bench.configure(
            profile(data__trim_bytes=5000, trimmed__limit_bytes=None)
        ),
    }
    frame = udp(SIZE)
    try:
        for name, configure in cases.items():
            with ExitStack() as stack:
                program = stack.enter_context(asic_program.load(lab))
                bench = Bench(program, stack)
                shape(bench.near, NEAR, RATE)
                configure(bench)
                report(name, bench, frame, program)
        for method in Balancing:
            with asic_program.load(lab) as program, ExitStack() as stack:
                bench = Bench(program, stack)
                arrival(bench, method)
                inside = in_program(bench, frame, asic_program.INGRESS)
                print(f"arrival, {method.name}: {inside:.0f} ns a run")  # noqa: T201
        hop()
    finally:
        asic_program.remove(lab)


def hop() -> None:
    """Measure a hop by either clock, balanced by flow."""
    (frame,) = packets(1)
    with ExitStack() as stack:
        routers: dict[Clock, Router] = {}
        for clock in CLOCKS:
            lab = f"t{secrets.token_hex(5)}"
            stack.callback(asic_program.remove, lab)
            program = stack.enter_context(asic_program.load(lab, Size(ports=64), clock=clock))
            routers[clock] = Router(program, stack)
            routers[clock].configure(Balancing.FLOW, seed=1)
        ratios = []
        for _ in range(ROUNDS):
            host, virtual = (blast(routers[clock], frame) for clock in CLOCKS)
            ratios.append(virtual / host)
        inside = {
            name: [in_program(routers[clock], frame, name) for clock in CLOCKS]
            for name in (asic_program.INGRESS, asic_program.EGRESS)
        }
    print(f"a hop, virtual clock to the host's: {statistics.median(ratios):.2f}")  # noqa: T201
    for name, (host, virtual) in inside.items():
        print(f"{name}: {host:.0f} ns a run, {virtual:.0f} ns with a virtual clock")  # noqa: T201


def report(name: str, bench: Bench, frame: bytes, program: SwitchProgram) -> None:
    bare, more = [], []
    for _ in range(ROUNDS):
        ports.detach(bench.near.kernel, NEAR, subject="near")
        bare.append(blast(bench, frame))
        ports.attach(bench.near.kernel, NEAR, program, subject="near")
        bench.near.kernel.flush()
        more.append(blast(bench, frame) - bare[-1])
    inside = in_program(bench, frame)
    print(  # noqa: T201
        f"{name}: {statistics.median(bare):.0f} ns per packet without the program, "
        f"{statistics.median(more):+.0f} ns with it; {inside:.0f} ns a run"
    )


if __name__ == "__main__":
    main()
