"""Stores of namespaces: sparse memory, files, holes, and descriptors that are given back."""

import errno
import os
from pathlib import Path

import pytest

from emulator.cluster.nvme_tcp.target.block_store import BlockStore
from emulator.errors import UserError

SIZE = 1 << 20


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_memory_is_sparse_and_given_back() -> None:
    before = descriptors()
    store = BlockStore.memory(1 << 40)
    assert store.read((1 << 40) - 4096, 4096) == bytes(4096)
    store.write(1 << 39, b"abc")
    assert store.read((1 << 39) - 1, 5) == b"\0abc\0"
    assert len(descriptors() - before) == 1
    del store
    assert descriptors() == before


def test_a_closed_store_raises() -> None:
    store = BlockStore.memory(SIZE)
    store.close()
    store.close()
    for action in (lambda: store.read(0, 1), lambda: store.write(0, b"x"), store.flush):
        with pytest.raises(OSError, match="Bad file descriptor"):
            action()


def test_a_file_is_made_sparse_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    store = BlockStore.file(path, SIZE)
    assert (path.stat().st_size, path.stat().st_blocks) == (SIZE, 0)
    store.write(4096, b"x" * 8192)
    store.zero(4096, 4096)
    store.flush()
    again = BlockStore.file(path, None, read_only=True)
    assert again.size == SIZE
    assert again.read(0, 16384) == bytes(8192) + b"x" * 4096 + bytes(4096)
    with pytest.raises(OSError, match="Bad file descriptor"):
        again.write(0, b"x")


def test_zeroes_are_written_where_there_are_no_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlockStore.file(tmp_path / "disk", 3 * SIZE)
    store.write(0, b"x" * 3 * SIZE)
    monkeypatch.setattr(BlockStore, "deallocate", lambda *_: False)
    store.zero(1, 2 * SIZE + 5)
    assert store.read(0, 3 * SIZE) == b"x" + bytes(2 * SIZE + 5) + b"x" * (SIZE - 6)


def test_a_file_that_has_become_shorter_raises(tmp_path: Path) -> None:
    store = BlockStore.file(tmp_path / "disk", SIZE)
    os.truncate(tmp_path / "disk", 100)
    with pytest.raises(OSError, match="shorter"):
        store.read(0, 4096)


def test_files_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--size SIZE and it is made"):
        BlockStore.file(tmp_path / "none", None)
    (tmp_path / "small").write_bytes(b"x")
    with pytest.raises(UserError, match="has 1 octets, not 5; leave --size out"):
        BlockStore.file(tmp_path / "small", 5)
    with pytest.raises(UserError, match="Is a directory"):
        BlockStore.file(tmp_path, None)

    def refuse(*_: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(UserError, match="File too large; give a smaller --size"):
        BlockStore.file(tmp_path / "large", SIZE)
    assert not (tmp_path / "large").exists()
