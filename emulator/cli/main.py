"""The ``uetemu`` command: one module per verb, loaded only when it is called."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import re
import resource
import sys
from typing import NamedTuple

import click

from emulator import logs
from emulator.cli.rank_command import is_farmed
from emulator.dataplane.kernel.launcher import Companions, place
from emulator.errors import UserError, is_full, is_short_of_memory
from topologies.advice import meant
from topologies.model import TopologyError


class Verb(NamedTuple):
    """A verb: the ``module`` that has its click ``command``, and one line of ``help``."""

    module: str
    help: str


VERBS = {
    "run": Verb("emulator.cli.run_verb", "run a scenario and leave a run folder"),
    "torchrun": Verb(
        "emulator.cli.torchrun_verb", "run a PyTorch script whose torch.distributed is the fabric"
    ),
    "predict": Verb(
        "emulator.cli.predict.predict_verb",
        "run what nccl-tests measured on a cluster beside it, or say what one should reach",
    ),
    "bench": Verb(
        "emulator.cli.bench_verb",
        "run the tests of a benchmark draft, or published measurements of hardware",
    ),
    "report": Verb("emulator.cli.reports.report_verb", "write the HTML report of run folders"),
    "compare": Verb(
        "emulator.cli.reports.compare_verb",
        "compare runs with each other, or with a cluster's measurements",
    ),
    "list": Verb(
        "emulator.cli.list_verb",
        "list scenarios, topologies, transports and more by name",
    ),
    "explain": Verb(
        "emulator.cli.explain_verb", "say what a column, a key of result.json or a counter means"
    ),
    "follow": Verb(
        "emulator.cli.reports.follow_verb", "follow one packet through every hop of a run"
    ),
    "traffic": Verb(
        "emulator.cli.reports.traffic_verb",
        "count a workload's messages, flows, packets, entropy, bursts, idle GPUs",
    ),
    "tensorboard": Verb(
        "emulator.cli.reports.tensorboard_verb", "write TensorBoard's event files of trainings"
    ),
    "doctor": Verb(
        "emulator.cli.doctor_verb",
        "what this machine and kernel offer, and what stands in for the rest",
    ),
    "up": Verb("emulator.cli.labs.up_verb", "build a fabric and leave it running"),
    "down": Verb("emulator.cli.labs.down_verb", "take a running lab down"),
    "status": Verb("emulator.cli.labs.status_verb", "show running labs, their nodes and ports"),
    "top": Verb(
        "emulator.cli.labs.top_verb",
        "watch the links of a running lab: rates, queues, marks, trims, drops",
    ),
    "cluster": Verb(
        "emulator.cli.cluster_verb", "run a scenario of a cluster with all of its networks"
    ),
    "services": Verb(
        "emulator.cli.labs.services_verb", "list the services of clusters, and whether they run"
    ),
    "metrics": Verb(
        "emulator.cli.labs.metrics_verb",
        "serve metrics of a running lab, and of the run in it, to Prometheus",
    ),
    "inject": Verb("emulator.cli.labs.inject_verb", "pull a cable of a running lab, or mend it"),
    "exec": Verb("emulator.cli.labs.exec_verb", "run a command inside a node of a running lab"),
    "routes": Verb(
        "emulator.cli.labs.routes_verb",
        "show what a switch has learned, chosen and advertises, of a lab, run or topology",
    ),
    "capture": Verb(
        "emulator.cli.labs.capture_verb", "stream a port's packets as pcapng to standard output"
    ),
    "graph": Verb(
        "emulator.cli.graph.graph_verb",
        "draw or export a topology, a running lab, the links of a run",
    ),
    "qos": Verb(
        "emulator.cli.graph.qos_verb",
        "write a switch's queues, ECN, PFC and trimming as configuration of a real one",
    ),
    "validate": Verb(
        "emulator.cli.validate_verb", "check fabric profiles and topologies before they are built"
    ),
    "fep": Verb(
        "emulator.cli.endpoints.fep_verb", "one UET endpoint on an interface, against any UET stack"
    ),
    "hca": Verb(
        "emulator.cli.endpoints.hca_verb",
        "one RoCEv2 endpoint on an interface, against any RDMA stack",
    ),
    "nvme": Verb(
        "emulator.cli.nvme_verb", "an NVMe/TCP target, or a host of one, in any namespace"
    ),
    "decode": Verb("emulator.cli.decode.decode_verb", "show the layers and fields of UET packets"),
    "wireshark": Verb("emulator.cli.wireshark_verb", "give Wireshark the UET dissector"),
    "conformance": Verb(
        "emulator.cli.conformance_verb", "which conformance statements the tests have proven"
    ),
    "clean": Verb("emulator.cli.labs.clean_verb", "find and remove what a lab left behind"),
}


#: Loaded where a launcher has started several processes.
RANK_RUNS = "emulator.cli.rank_runs"


class Verbs(click.Group):
    """Imports a verb's module on use, so that ``uetemu status`` does not pay for scapy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            raise click.UsageError(f"there is no verb {cmd_name!r}{meant(cmd_name, VERBS)}", ctx)
        module = importlib.import_module(VERBS[cmd_name].module)
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("-v", "--verbose", count=True, help="Show steps on standard error; -vv: details.")
@click.version_option(package_name="uetemu")
@click.pass_context
def cli(context: click.Context, verbose: int) -> None:
    """Packet-level emulator of AI training fabrics."""
    logs.configure(verbose, os.environ.get(logs.VARIABLE, ""))
    if context.obj is not None:
        importlib.import_module(RANK_RUNS).join(context.obj, context.invoked_subcommand)
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


SHORT_OF_MEMORY = (
    "this process gets no more memory: raise the limit (ulimit -v, systemd's MemoryMax=), or take "
    "a smaller fabric or smaller messages"
)
#: Libraries alone take some 240 MB of address space.
LEAST_ADDRESSES = 256 << 20
#: New objects until the garbage collector looks: modules and plans make many, which all stay.
COLLECTED_OBJECTS = 200_000
#: Two to this power are the clock cycles for which each thread of numpy's OpenBLAS spins when it
#: has no work: 26 by default, which costs up to 25 ms of each start.
SPUN_CYCLES = 4
#: How click calls a word that is no number.
_NO_NUMBER = re.compile(r"is not a valid (integer|float)( range)?$")
#: Where Debian has ip, tc and bpftool; PATH of cron and of `su` has neither.
SYSTEM_COMMANDS = ("/usr/sbin", "/sbin")


def main() -> None:
    """Entry point: user errors become one sentence on stderr and exit status 1 (usage: 2)."""
    gc.set_threshold(COLLECTED_OBJECTS)
    _replace_closed_streams()
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys((*path, *SYSTEM_COMMANDS)))
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", str(SPUN_CYCLES))
    given = place()
    if given is None or is_farmed(sys.argv[1:]):
        status = _flushed(_carry_out())
        gc.freeze()  # else Python's end would look for garbage among everything, twice
        sys.exit(status)
    rank_runs = importlib.import_module(RANK_RUNS)
    sys.exit(rank_runs.carry_out(given, lambda ranks: _flushed(_carry_out(ranks))))


def _require_memory() -> None:
    """Raise UserError if libraries could not be loaded: some tell of each line that they lose."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESSES:
        raise UserError(
            f"the limit of memory by addresses is {limit >> 20} MiB, and uetemu needs "
            f"{LEAST_ADDRESSES >> 20} MiB or more: raise it with ulimit -v"
        )


def _number_words(found: re.Match[str]) -> str:
    return "is not a whole number" if found[1] == "integer" else "is not a number"


def _carry_out(ranks: Companions | None = None) -> int:
    """Run the verb, print the sentence of whatever ended it, and return the exit status."""
    try:
        _require_memory()
        # Out of standalone mode click returns the status of an Exit, else what the verb returned.
        status = cli.main(prog_name="uetemu", standalone_mode=False, obj=ranks)
        return status if isinstance(status, int) else 0
    except SystemExit as end:  # a verb's own status
        return end.code if isinstance(end.code, int) else 0
    except click.UsageError as error:
        message = _NO_NUMBER.sub(_number_words, error.format_message().rstrip("."))
        where = error.ctx.command_path if error.ctx else "uetemu"
        return _ended(ranks, f"{message}; see {where} --help", error.exit_code)
    except click.ClickException as error:
        return _ended(ranks, error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _ended(ranks, "interrupted", 130)
    except (UserError, TopologyError) as error:
        return _ended(ranks, str(error), 1, here=is_full(error.__cause__))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return _ended(
                ranks, "too many open files: raise the limit with ulimit -n", 1, here=True
            )
        if is_short_of_memory(error):
            return _ended(ranks, SHORT_OF_MEMORY, 1, here=True)
        if not is_full(error):
            raise
        where = error.filename or "what was to be written"
        _ended(ranks, f"no room for {where} ({error.strerror}); make some", 1, here=True)
        _forget_output()
        return 1
    except (MemoryError, ImportError, RuntimeError) as error:
        if not is_short_of_memory(error):
            raise
        return _ended(ranks, SHORT_OF_MEMORY, 1, here=True)


def _ended(ranks: Companions | None, sentence: str, status: int, *, here: bool = False) -> int:
    """Print the ``sentence`` on why the command ends, and return its exit ``status``.

    One that is ``here`` is this machine's matter, which of several ranks is named.
    """
    if ranks is not None:
        ranks.leave(sentence)
        sentence = ranks.exit_reason if here else sentence
    if ranks is None or not ranks.death_reported:
        click.echo(f"uetemu: {sentence}", err=True)
    return status


def _flushed(status: int) -> int:
    """Flush standard output; return ``status``, or what its failure makes of a success.

    A stream keeps what its reader did not take.  Python would try once more at its end, complain,
    and exit with status 120, whatever the verb has reported.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        return status or 1  # as click does when a verb meets it
    except OSError as error:
        _forget_output()
        click.echo(f"uetemu: standard output takes no more ({error.strerror})", err=True)
        return status or 1
    return status


def _replace_closed_streams() -> None:
    """Put /dev/null where a caller has closed a standard stream (``>&-``).

    Else the next file that is opened would take its number, and its output.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            setattr(sys, name, open(descriptor, "w" if descriptor else "r"))  # noqa: SIM115


def _forget_output() -> None:
    """Send what standard output still holds to /dev/null, so that Python's end finds nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
