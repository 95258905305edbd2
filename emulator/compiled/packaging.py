"""What pip does besides: where a C compiler is, the wheel has compiled modules.

setuptools loads this file by its path from ``setup.cfg``, without the packages around it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

CHECKOUT = Path(__file__).parents[2]
sys.path.insert(0, str(CHECKOUT))

from emulator.compiled.builds import BUILDS, Build, fitting  # noqa: E402


class BuildWithCompiledModules(build_py):
    """Adds the checkout's build of them, which is made if there is none."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        place = Path(self.build_lib) / BUILDS.relative_to(CHECKOUT)
        shutil.rmtree(place, ignore_errors=True)  # of another version
        if not isinstance(fitting(), Build):
            subprocess.run([sys.executable, "-m", "emulator.compiled"], cwd=CHECKOUT, check=False)
        if isinstance(build := fitting(), Build):
            shutil.copytree(build.folder, place / build.folder.name)


class WheelForOnePython(bdist_wheel):
    """A wheel with compiled modules is one for this Python and this kind of machine."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False
