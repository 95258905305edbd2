"""Options that several verbs have, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Option = Callable[[Any], Any]

TABLE_OR_JSON: Option = click.option(
    "--format", "-f", "form", type=click.Choice(["table", "json"]), default="table"
)
#: Of verbs that work in a lab whose name the argument need not have.
LAB: Option = click.option(
    "--lab", metavar="NAME", help="Which lab; not needed when only one is running."
)
PARAMETERS: Option = click.option(
    "--param", "pairs", multiple=True, metavar="NAME=VALUE", help="of the scenario"
)
ITERATIONS: Option = click.option(
    "--iterations", metavar="N", help="same as --param iterations=..."
)
RUN_FOLDER: Option = click.option(
    "--output", type=click.Path(path_type=Path), help="run folder [default: runs/...]"
)
FABRIC: Option = click.option(
    "--fabric",
    type=click.Choice(["kernel", "model"]),
    default="kernel",
    show_default=True,
    help="kernel: switches forward real frames in namespaces, which takes root; model: switches "
    "are a model in this process, without root, and each result says so",
)
LAB_NAME: Option = click.option("--name", metavar="LAB", help="name of the lab while it stands")
SEED: Option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="decides everything that is random",
)


def result_format(json: str) -> Option:
    """Return ``--format``, where ``json`` says what the object holds."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help=f"json: {json}",
    )
