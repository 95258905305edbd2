"""Exports register themselves by name and suffix."""

import pytest

from topologies import catalogue
from topologies.exports.export_registry import EXPORTS, Export


def test_every_export_writes_the_smallest_fabric() -> None:
    topology = catalogue.load("rail_clos:hosts=2,gpus_per_host=1,spines=1")
    assert {"mermaid", "json", "htsim", "csv"} <= set(EXPORTS)
    for name, export in EXPORTS.items():
        assert export.name == name
        assert export.write(topology).endswith("\n"), name


@pytest.mark.parametrize(
    "export",
    [Export("csv", "x", (".other",), str), Export("other", "x", (".csv",), str)],
    ids=["name", "suffix"],
)
def test_two_of_one_name_or_suffix_are_refused(export: Export) -> None:
    with pytest.raises(ValueError, match="there already is an export"):
        EXPORTS.register(export)
    assert "other" not in EXPORTS
