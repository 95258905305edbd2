"""Names of scenarios that a fabric and a cluster share lead to the right one, or command."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from emulator.cli.main import cli
from emulator.cli.run_options import chosen
from emulator.cluster.run import cluster_scenario
from emulator.errors import UserError


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
