"""Columns of words stand at the left of their cells, numbers at the right."""

from emulator.report.run.report_tables import ReportTable


def test_words_are_read_from_the_left_and_numbers_from_the_right() -> None:
    rows = [
        ["uet", "1.5", "n/a", "-", "64KiB", "-3.0", "1.0 [0.9 .. 1.1]", "", "n/a", "-"],
        ["4", "2", "7", "2", "1MiB", "+4", "n/a", "", "a note", "-b"],
    ]
    table = ReportTable("t", "t", (), [""] * 10, rows)
    assert table.of_text == {0, 8, 9}


def test_a_table_without_rows_has_no_columns_of_words() -> None:
    assert ReportTable("t", "t", (), (), (), reason="none").of_text == frozenset()
