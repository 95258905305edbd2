"""Room in a GPU's memory for calls."""

from pathlib import Path

import pytest

from emulator.torch_backend.arena import Arena, ArenaFullError


def _file(tmp_path: Path, octets: int) -> Path:
    path = tmp_path / "memory"
    with path.open("wb") as file:
        file.truncate(octets)
    return path


def test_what_is_given_back_is_one_piece_again(tmp_path: Path) -> None:
    arena = Arena(_file(tmp_path, 1 << 13), 4096, 8192)
    places = [arena.allocate(1000) for _ in range(4)]
    assert places == [4096, 5120, 6144, 7168]
    for at in (places[1], places[3], places[2], places[0]):
        arena.free(at)
    assert arena.allocate(4096) == 4096


def test_the_first_hole_that_is_large_enough_is_taken(tmp_path: Path) -> None:
    arena = Arena(_file(tmp_path, 8192), 0, 8192)
    first, _, third, _ = (arena.allocate(size) for size in (256, 256, 512, 256))
    arena.free(first)
    arena.free(third)
    assert arena.allocate(300) == third
    assert arena.allocate(1) == first


def test_a_full_memory_names_what_has_no_room(tmp_path: Path) -> None:
    arena = Arena(_file(tmp_path, 1024), 0, 1024)
    arena.allocate(800)
    with pytest.raises(ArenaFullError, match="memory has no room for 300 octets"):
        arena.allocate(300)
