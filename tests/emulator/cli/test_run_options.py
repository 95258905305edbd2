"""Every option of ``uetemu run`` is heard or refused; shared names lead to the right scenario."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner

from emulator.cli.main import cli
from emulator.cli.run_options import chosen
from emulator.cli.run_verb import command
from emulator.cluster.run import cluster_scenario
from emulator.errors import UserError

#: A run that every option is tried on, and what most of them stand beside.
PLAIN = (
    *("permutation", "--fabric", "model", "--topology", "rail_clos:hosts=2,gpus_per_host=2"),
    *("--param", "message=16KiB"),
)
SHORT = ("--sizes", "16KiB", "--iterations", "2")
ONCE = ("--iterations", "1", "--param", "warmups=0")
TABLE = "the table"
LEARNED = ("--control-plane", "ebgp")
DOWN = ("--fault", "t=1us link rail0:up0 down")


@dataclass(frozen=True)
class Changed:
    """An option that changes ``file``, or the table, of a run that has ``beside`` as well."""

    words: tuple[str, ...]
    file: str = "result.json"
    beside: tuple[str, ...] = SHORT


@dataclass(frozen=True)
class Refused:
    """An option that is refused with words of ``told``."""

    words: tuple[str, ...]
    told: str
    beside: tuple[str, ...] = SHORT


#: What each option does.
DOES: dict[str, list[Changed | Refused]] = {
    "--topology": [Changed(("--topology", "rail_clos:hosts=2,gpus_per_host=2,nic_rate=200Gbps"))],
    "--transport": [Changed(("--transport", "rocev2"))],
    "--switch": [Changed(("--switch", "deep:latency=2us"))],
    "--control-plane": [Changed(LEARNED, "fabric.json")],
    "--seed": [Changed(("--seed", "7"))],
    "--seeds": [Changed(("--seeds", "2"))],
    "--clock": [Refused(("--clock", "host"), "runs have the virtual clock alone")],
    "--fabric": [Refused(("--fabric", "paper"), "'paper'")],
    "--dilation": [Refused(("--dilation", "50"), "runs have the virtual clock alone")],
    "--workers": [Refused(("--workers", "0"), "neither auto nor a number")],
    "--parts": [Refused(("--parts", "/dev/null"), "--parts")],
    "--convergence": [
        Changed(("--convergence", "5us"), beside=(*SHORT, *LEARNED, *DOWN)),
        Refused(("--convergence", "5us"), "take a --control-plane", beside=(*SHORT, *DOWN)),
        Refused(("--convergence", "5us"), "and a --fault", beside=(*SHORT, *LEARNED)),
    ],
    "--check-digest": [Refused(("--check-digest", "0" * 64), "digest")],
    "--digest-parts": [Changed(("--digest-parts",), "digest-parts.json")],
    "--capture": [Changed(("--capture", "all"), "capture.pcapng")],
    "--snaplen": [
        Changed(("--snaplen", "full"), "capture.pcapng"),
        Refused(("--snaplen", "full"), "keeps none", beside=(*SHORT, "--capture", "none")),
    ],
    "--frame-latency": [Changed(("--frame-latency", "1"), "frame_latency.csv")],
    "--event-log": [Changed(("--event-log", "all"), "event-logs/h0g0.sqlog")],
    "--fault": [Changed(DOWN)],
    "--endpoints": [
        Changed(("--endpoints", "reused")),
        Refused(("--endpoints", "reused"), "take more iterations", beside=(*SHORT[:2], *ONCE)),
    ],
    "--gap": [
        Changed(("--gap", "1ms")),
        Refused(("--gap", "1ms"), "take more iterations", beside=(*SHORT[:2], *ONCE)),
    ],
    "--pxn": [Changed(("--pxn", "always"))],
    "--nic": [Changed(("--nic", "cx7"))],
    "--gpu-direct": [
        Changed(("--gpu-direct", "off")),
        Refused(("--gpu-direct", "off:hosts=h9"), "names h9, no server of this topology"),
    ],
    "--report": [Changed(("--report",), "report.html")],
    "--format": [Changed(("--format", "json"), TABLE)],
    "--wide": [
        Changed(("--wide",), TABLE),
        Refused(("--wide",), "--format json shows none", beside=(*SHORT, "--format", "json")),
    ],
    "--param": [Changed(("--param", "in_flight=1"))],
    "--sizes": [Changed(("--sizes", "32KiB"), beside=SHORT[2:])],
    "--iterations": [Changed(("--iterations", "3"), beside=SHORT[:2])],
    # What a file adds is tried in test_plugins.
    "--plugin": [Refused(("--plugin", "missing.py"), "missing.py")],
    # Its name is that of what it makes in the machine, while it stands.
    "--name": [Refused(("--name", "a/b"), "a/b")],
    # All cases here have a folder by it.
    "--output": [Refused(("--output", "/dev/null/run"), "/dev/null")],
}


@cache
def left(words: tuple[str, ...]) -> dict[str, str]:
    """Return what a run leaves, by file, and its table; ``refused`` is why it is."""
    with TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        output = () if "--output" in words else ("--output", str(folder))
        done = CliRunner().invoke(command, [*PLAIN, *words, *output])
        if done.exit_code:
            refusal = done.output if isinstance(done.exception, SystemExit) else done.exception
            return {"refused": str(refusal)}
        found = {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*")
            if path.is_file()
        }
        return found | {TABLE: done.stdout.replace(parent, "")}


def test_each_option_is_tried() -> None:
    known = {name for option in command.params for name in option.opts if name.startswith("--")}
    assert set(DOES) == known


@pytest.mark.parametrize("one", [one for several in DOES.values() for one in several], ids=str)
def test_an_option_of_a_run_is_not_silent(one: Changed | Refused) -> None:
    after = left((*one.beside, *one.words))
    if isinstance(one, Refused):
        assert one.told in after["refused"]
    else:
        assert after[one.file] != left(one.beside).get(one.file)


@pytest.mark.parametrize(
    ("name", "given", "scenario", "parameters"),
    [
        ("incast", {"senders": "4"}, "incast", {"senders": "4"}),
        ("dataset", {"shards": "8"}, "storage_rdma", {"shards": "8", "work": "dataset"}),
        ("checkpoint-storage", {}, "storage_rdma", {"work": "checkpoint,restore"}),
        ("checkpoint", {"fail": "none"}, "checkpoint", {"fail": "none"}),
        ("neural_training", {"epochs": "2"}, "neural_training", {"epochs": "2"}),
        (
            "neural_training",
            {"model": "tensor_parallel", "parts": "4"},
            "tensor_parallel",
            {"parts": "4"},
        ),
        (
            "checkpoint",
            {"over": "storage", "state": "1MiB"},
            "storage_rdma",
            {"state": "1MiB", "work": "checkpoint,restore"},
        ),
    ],
)
def test_a_name_means_a_scenario_and_its_parameters(
    name: str, given: dict[str, str], scenario: str, parameters: dict[str, str]
) -> None:
    loaded, meant = chosen(name, given, "uet")
    assert (loaded.name, meant) == (scenario, parameters)


@pytest.mark.parametrize(
    ("name", "given", "transport", "words"),
    [
        ("dataset", {}, "tcp", "on a cluster: uetemu cluster dataset, or"),
        ("checkpoint", {"over": "storage"}, "nvme-tcp", "uetemu cluster checkpoint_storage"),
        ("checkpoint", {"state": "1MiB"}, None, "state is for checkpoint with over=storage"),
        (
            "neural_training",
            {"heads": "4"},
            None,
            "heads is for neural_training with model=attention",
        ),
        ("dataset", {"work": "restore"}, None, "is storage_rdma with work=dataset; leave work out"),
        ("model_push", {}, None, "run uetemu cluster model_push"),
    ],
)
def test_a_wrong_combination_is_refused_with_the_command_that_is_right(
    name: str, given: dict[str, str], transport: str | None, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        chosen(name, given, transport)


def test_a_cluster_names_the_command_by_rdma() -> None:
    dataset = cluster_scenario.load("dataset")
    dataset.check_transport("tcp")
    with pytest.raises(UserError, match="run uetemu run dataset --transport rocev2"):
        dataset.check_transport("rocev2")
    with pytest.raises(UserError, match="checkpoint --param over=storage --transport uet"):
        cluster_scenario.load("checkpoint_storage").check_transport("uet")
    with pytest.raises(UserError, match="model_push runs over TCP alone"):
        cluster_scenario.load("model_push").check_transport("uet")
    with pytest.raises(UserError, match="run uetemu run checkpoint"):
        cluster_scenario.load("checkpoint")


def test_names_of_storage_by_rdma_are_among_the_known() -> None:
    with pytest.raises(UserError, match=r"'dataste' \(did you mean dataset\?\)"):
        chosen("dataste", {}, None)


def test_the_help_of_a_run_with_a_scenario_has_its_sheet() -> None:
    plain = CliRunner().invoke(cli, ["run", "--help"]).output
    shown = CliRunner().invoke(cli, ["run", "incast", "--help"]).output
    assert "What should be seen" in shown
    assert "  senders=" in shown
    assert "  in_flight=128            writes of a flow that may be under way\n" in shown
    assert shown.endswith(plain[plain.index("Parameters of the transport") :])
    assert "What should be seen" not in plain
