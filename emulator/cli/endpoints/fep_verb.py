"""``uetemu fep``: one Ultra Ethernet endpoint on an interface, against any stack."""

from __future__ import annotations

from typing import Any

import click

from emulator.cli.endpoints.endpoint_options import (
    IN_FLIGHT,
    NUMBER,
    SCRIPT,
    SPAN,
    START_AT,
    TIMEOUT,
)
from emulator.cli.endpoints.fep_options import (
    EPILOG,
    config_values,
    domains_from,
    peers_from,
    shared,
)
from emulator.cli.endpoints.gpu_choice import place
from emulator.cli.plugin_command import PluginCommand
from emulator.dataplane.cleanup import require_root
from emulator.errors import UserError
from emulator.lab.standalone.script.requested_operations import DEFAULT_KEY
from emulator.lab.standalone.session import Limits


@click.group(
    "fep",
    invoke_without_command=True,
    short_help="one UET endpoint on an interface, against any UET stack",
)
@click.pass_context
def command(context: click.Context) -> None:
    """Be one fabric endpoint (FEP) on an interface of this machine.

    \b
    uetemu fep target -i eth0 --region default:1M --receive 4096x8
    uetemu fep initiator -i eth0 -p 10.0.0.2 write:3000 read:3000 send:100

    The other end may be any Ultra Ethernet stack.  The interface may have the address in the
    kernel too: its answers to UET packets are suppressed while the endpoint lives.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


@command.command("target", short_help="serve memory and receives", cls=PluginCommand, epilog=EPILOG)
@shared
@click.option(
    "--linger",
    type=SPAN,
    default="0.5",
    metavar="TIME",
    help="Stay so long after the last of --count, for peers that missed an answer."
    "  [default: 500ms]",
)
def target(linger: int, **options: Any) -> int:
    """Serve memory and receives to initiators, until --count, --duration or a signal.

    \b
    uetemu fep target -i eth0 --region default:64k --receive 3000x3
    uetemu fep target -n dut -i eth0 -e native --crc --compat reference-provider \\
        --region default:4k,fill=uint64:1000 --pcap target.pcapng
    uetemu fep target -i eth0 --receive 10000 --receive-after 250ms --count 1

    \b
    uetemu fep target -i eth0 --region default:64k --region default:64k,idempotent

    The last one serves RUDI too: such a region has another key, that with bit 63 set.

    Events are JSON objects, one a line: start, peer (one that was learnt from what it sent),
    pdc, completion, refused (the first of a kind that was refused or dropped: what is its
    counter), error, end.  A write without header data completes nothing at its target: it
    shows in the regions and counters at the end.  Exit status 0: all that came was as expected.
    """
    limits = Limits(duration=options.pop("duration"), count=options.pop("count"), linger=linger)
    return _run("target", limits, options)


@command.command(
    "initiator", short_help="carry out operations at a target", cls=PluginCommand, epilog=EPILOG
)
@click.argument("phrases", nargs=-1, metavar="[OPERATION]...")
@shared
@SCRIPT
@click.option(
    "--key",
    type=NUMBER,
    default=DEFAULT_KEY,
    help=f"Memory key of operations that name none.  [default: {DEFAULT_KEY:#x}]",
)
@click.option("--peer-job-id", type=NUMBER, help="JobID at the peer.  [default: --job-id]")
@click.option("--peer-pid-on-fep", type=NUMBER, help="PIDonFEP at the peer.  [default: own]")
@click.option("--peer-resource-index", type=NUMBER, help="Its resource index.  [default: own]")
@IN_FLIGHT
@START_AT
@click.option("--close/--no-close", default=True, help="Close PDCs at the end.  [default: close]")
@TIMEOUT
@click.option(
    "--linger",
    type=SPAN,
    default="0.2",
    metavar="TIME",
    help="Stay so long at the end while PDCs are open.  [default: 200ms]",
)
def initiator(
    phrases: tuple[str, ...],
    script: str | None,
    key: int,
    in_flight: int,
    close: bool,
    timeout: int,
    linger: int,
    **options: Any,
) -> int:
    """Carry out OPERATIONs at a peer, in their order.

    \b
    OPERATION         FIELDS (those of all: count, peer, delivery, job_id,
                      pid_on_fep, resource_index, absolute, after, error)
    write:SIZE        key, offset, step, pattern, index, header_data, dc,
                      synchronise, idempotent
    read:SIZE         key, offset, step, expect, index, idempotent
    send:SIZE         pattern, index, header_data, dc, protocol
    tsend:SIZE        the same, tag, tag_step
    datagram:SIZE     pattern, index, header_data
    atomic:NAME       key or tag, offset, step, type, operand, compare,
                      synchronise
    fetch:NAME        the same but synchronise, expect
    cswap ... mswap   as fetch:cswap
    noop
    open              count, peer, delivery, negotiate, after, error
    probe             count, peer, wait, after, error

    \b
    uetemu fep initiator -i eth0 -p 10.0.0.2 write:5000,offset=4k,header_data=0xa1
    uetemu fep initiator -i eth0 -p 10.0.0.2 read:2500,expect=reference
    uetemu fep initiator -i eth0 -p fd99::2 --delivery rod tsend:2500,tag=0x11,count=2
    uetemu fep initiator -i eth0 -p 10.0.0.2 fetch:sum,operand=5,count=2,expect=1000/1005
    uetemu fep initiator -i eth0 -p 10.0.0.2 write:300,key=0x99,error=BAD_MKEY
    uetemu fep initiator -i eth0 -p 10.0.0.2 write:100,delivery=rudi
    uetemu fep initiator -i eth0 -p 10.0.0.2 atomic:sum,operand=5,tag=0x11
    uetemu fep initiator -i eth0 -p 10.0.0.2 open,negotiate probe,count=3
    uetemu fep initiator -i eth0 -p 10.0.0.2 --compat sync_operations \\
        write:3000,synchronise=7/0 write:3000,offset=4k,synchronise=7/2
    uetemu fep initiator -i eth0 -p 10.0.0.2 --in-flight 0 --script operations.json

    An atomic with a tag is for the memory of the receive that it matches.  open makes a PDC by a
    NOOP, or by a NEGOTIATION; probe sends a PROBE on one that is open, and waits so long for its
    answer.  synchronise=GROUP/COUNT is the UEC reference provider's extension: the target tells of
    the group once all COUNT members (0: another one says how many) have come.

    \b
    protocol   eager, rendezvous or deferrable [the endpoint's thresholds decide]
    NAME       min, max, sum, diff, prod, lor, land, bor, band, lxor, bxor,
               read, write, cswap, cswap_ne, cswap_le, cswap_lt, cswap_ge,
               cswap_gt, mswap, inval
    type       int8, uint8, int16, uint16, int32, uint32, int64, uint64,
               int128, uint128, float, double, float_complex, double_complex,
               long_double, long_double_complex, bf16, fp16 [uint64]
    step       octets from one message's place to the next [write, read: SIZE;
               atomics: 0]
    tag_step   from one message's tag to the next [1]
    error      an SES return code, a NACK code, or one of TIMEOUT,
               RTO_RETRIES_EXHAUSTED, NACK_RETRIES_EXHAUSTED, PDC_CLOSED, ...

    cswap... and mswap need compare and operand, as in cswap,operand=5,compare=7.  idempotent sets
    bit 63 of the key; with delivery=rudi the default key has it unless idempotent=no.

    Messages of one write or read lie one after the other (step).  Several operands, and the
    results expected of several messages, have slashes between them.  error= expects that one.  A
    script is a list of such phrases, or of objects: {"op": "write", "size": 3000, "count": 2}.

    Exit status 0: every operation succeeded, with the result it was to have.
    """
    if not phrases and script is None:
        raise UserError("no operation is given; add one, for example write:3000, or --script FILE")
    if not options["peers"]:
        raise UserError("whom are the operations for? name the target with --peer FA")
    remote = {
        name: value
        for name in ("job_id", "pid_on_fep", "resource_index")
        if (value := options.pop(f"peer_{name}")) is not None
    }
    limits = Limits(
        duration=options.pop("duration"),
        timeout=timeout or None,
        count=options.pop("count"),
        linger=linger,
        close=close,
    )
    return _run(
        "initiator", limits, options, phrases=phrases, script=script, key=key,
        in_flight=in_flight, remote=remote,
    )  # fmt: skip


def _run(role: str, limits: Limits, options: dict[str, Any], **more: Any) -> int:
    for name in ("peer_job_id", "peer_pid_on_fep", "peer_resource_index"):
        options.pop(name, None)
    place(options, "uet")
    values = config_values(options)
    domains = domains_from(options["keys"])
    peers = peers_from(options.pop("peers"), options.pop("peer_mac"))
    require_root("run an endpoint")
    # This loads all transports: 49 ms beside the 418 ms of imports that --help takes.
    from emulator.lab.standalone.uet_endpoint import StandAloneFep

    return StandAloneFep(
        role=role,
        limits=limits,
        values=values,
        domains=domains,
        peers=peers,
        table=options.pop("style") == "table",
        with_pdcs=not options.pop("no_pdc_events"),
        **options,
        **more,
    ).run()
