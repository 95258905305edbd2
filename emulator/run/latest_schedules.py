"""The schedules that a scenario compiled last, which are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from emulator.sim.endpoint.operations.schedule import Schedule, compiled_ranks, without_others


class LatestSchedules:
    """Keeps what was compiled last: a large program takes longer to compile than to read."""

    def __init__(self) -> None:
        self._kept: tuple[object, frozenset[int] | None, Sequence[Schedule]] | None = None

    def of(
        self, compile_one: Callable[[], Sequence[Schedule]], *, source: object
    ) -> Callable[[], Sequence[Schedule]]:
        """``compile_one``, which is not called if the last one called was of the same ``source``.

        Ranks that are not compiled have no operations.
        """

        def compiled() -> Sequence[Schedule]:
            kept, ranks = self._kept, compiled_ranks()
            if kept is None or kept[0] is not source or kept[1] != ranks:
                self._kept = kept = None  # there is no room for two
                self._kept = kept = source, ranks, without_others(compile_one())
            return kept[2]

        return compiled
