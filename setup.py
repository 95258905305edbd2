"""What setup.cfg cannot say: where a C compiler is, the wheel has compiled modules."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

CHECKOUT = Path(__file__).parent
sys.path.insert(0, str(CHECKOUT))  # pip imports this file from elsewhere

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


class DistributionForOnePython(Distribution):
    """A wheel of this is one for this Python and this kind of machine."""

    def has_ext_modules(self) -> bool:
        return True


setup(distclass=DistributionForOnePython, cmdclass={"build_py": BuildWithCompiledModules})
