"""``uetemu run --fabric model`` in a child of the test's process."""

from collections.abc import Sequence
from pathlib import Path

from emulator.pytest_plugin.runs import FolderCheck, RunFactory
from tests.harness.runs.forked_command import ForkedRun


class ModelledRun(ForkedRun):
    """A run on a modelled fabric."""

    def __init__(
        self, parent: Path, scenario: str, *options: str, checks: Sequence[FolderCheck] = ()
    ) -> None:
        super().__init__(parent, scenario, *options, "--fabric", "model", checks=checks)


class ModelledRuns(RunFactory):
    """``uetemu_run`` on a modelled fabric."""

    process = ModelledRun
