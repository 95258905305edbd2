"""What a rank has before its script begins: the fabric as torch's backend, and its clock."""

from __future__ import annotations

from collections.abc import Callable

from emulator.torch_backend.launching import Prepare, RankPlace


def on_fabric(computing: Callable[[], Callable[[], int]]) -> Prepare:
    """Return what prepares a rank; ``computing`` begins to measure, and returns the clock."""

    def prepare(place: RankPlace) -> Callable[[str], None]:
        from emulator.torch_backend.process_group import install
        from emulator.torch_backend.rank_link import RankLink

        link = RankLink(place.rank, place.size, place.channel)
        link.computed_ns = computing()
        install(link)
        return link.end

    return prepare


def no_computing() -> Callable[[], int]:
    """Computing takes no time."""
    return lambda: 0
