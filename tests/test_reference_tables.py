"""The manuals' tables say what the code says."""

from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.reference_tables import MANUALS, TABLES, with_tables


@pytest.mark.parametrize("manual", MANUALS, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_tables_are_those_of_the_code(manual: Path) -> None:
    text = manual.read_text()
    assert with_tables(text) == text, "run python -m tests.reference_tables"


def test_every_table_is_in_a_manual() -> None:
    text = "".join(manual.read_text() for manual in MANUALS)
    assert [name for name in TABLES if f"<!-- generated: {name} -->" not in text] == []
