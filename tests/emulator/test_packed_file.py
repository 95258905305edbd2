"""Files of users as octets and text: bounds, encodings, and how far a long one is."""

import gzip
import logging
from pathlib import Path

import pytest

from emulator import packed_file
from emulator.errors import UserError


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_text_is_told_by_its_octets(encoding: str) -> None:
    assert packed_file.text_of("size 4 µs\n".encode(encoding)) == "size 4 µs\n"
    assert packed_file.text_of(b"") == ""
    with pytest.raises(UnicodeDecodeError):
        packed_file.text_of(b"size \xff")


def test_bounds_hold_for_packed_and_plain(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for octets in (b"x" * 5000, gzip.compress(b"x" * 5000)):
        path.write_bytes(octets)
        assert packed_file.content(path) == b"x" * 5000
        assert packed_file.head(path, 3) == b"xxx"
        with pytest.raises(UserError, match="more than 4999 B; cut it"):
            packed_file.content(path, most=4999)
        with pytest.raises(UserError, match="more than 4000 B, which --param unpacked allows"):
            packed_file.content(path, unpacked=4000)
        with pytest.raises(UserError, match=r"of memory are free: .* --param unpacked=SIZE"):
            packed_file.content(path, weight=2**60)


def test_what_takes_long_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packed_file, "LINE_S", -1.0)  # every line is due
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(3 * 2**20)))
    with caplog.at_level(logging.WARNING):
        packed_file.content(path)
    assert [record.getMessage() for record in caplog.records] == [
        f"uetemu: unpacking a.gz: {number} MiB" for number in (1, 2, 3)
    ]
