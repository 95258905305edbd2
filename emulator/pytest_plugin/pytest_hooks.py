"""Fixtures, marks and options that pytest sees in every session; nothing else is loaded with them.

The emulator itself is imported when a test first uses a fixture of it: pytest's plugin manager then
loads :mod:`emulator.pytest_plugin.plugin_fixtures`.  Sessions without such a test do not pay for
it.

::

    @pytest.mark.uetemu_topology("pod.yaml")
    @pytest.mark.uetemu_transport("uet", "rocev2")
    def test_incast(uetemu_run):
        run = uetemu_run("incast", params={"senders": 8})
        run.assert_bounds("efficiency>=90%", "drops==0")
        run.assert_against("baseline/result.json", fail_if="time>5%")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

FIXTURES = "emulator.pytest_plugin.plugin_fixtures"
TOPOLOGY, TRANSPORT = "uetemu_topology", "uetemu_transport"
#: Ends of names of fabric profiles.
PROFILES = (".yaml", ".yml")
_MARKS = (
    f"{TOPOLOGY}(spec, ...): topology or fabric profile of the test's runs and labs; "
    "several repeat the test",
    f"{TRANSPORT}(spec, ...): transport of the test's runs; several repeat the test",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    group = parser.getgroup("uetemu", "emulated fabrics")
    group.addoption(
        "--uetemu-artifacts",
        metavar="DIR",
        type=Path,
        help="write run folders to DIR, and keep those of failed tests, with their reports",
    )
    group.addoption(
        "--uetemu-without-root",
        choices=("fail", "skip"),
        default="fail",
        help="outcome of tests that build a fabric, if this is not root (default: fail)",
    )
    group.addoption(
        "--uetemu-keep-lab",
        action="store_true",
        help="leave the lab of a failed test up, and name it",
    )
    group.addoption(
        "--uetemu-shell",
        action="store_true",
        help="open a shell in the first GPU of a failed test's lab, before the lab is removed",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks, which ``--strict-markers`` demands."""
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name in (TOPOLOGY, TRANSPORT):
        mark = metafunc.definition.get_closest_marker(name)
        if mark is None or name not in metafunc.fixturenames:
            continue
        values = mark.args
        if not values or mark.kwargs or not all(isinstance(value, str) for value in values):
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid}: the mark {name} takes a text or several, such as "
                f'@pytest.mark.{name}("{"rail_clos:hosts=2" if name == TOPOLOGY else "uet"}")'
            )
        if len(values) > 1:
            metafunc.parametrize(name, values, indirect=True, ids=values)


def _fixture(request: pytest.FixtureRequest, name: str) -> Any:
    """Return a fixture of the module that is loaded on first use."""
    request.config.pluginmanager.import_plugin(FIXTURES)
    return request.getfixturevalue(name)


def _marked(request: pytest.FixtureRequest, name: str) -> str | None:
    """Return the value of a test's mark; of several, the one that this repetition has."""
    mark = request.node.get_closest_marker(name)
    value: str | None = getattr(request, "param", mark.args[0] if mark else None)
    return value


@pytest.fixture
def uetemu_topology(request: pytest.FixtureRequest) -> str | None:
    """The topology that the test is marked with.  None: unmarked.

    A fabric profile is looked for beside the test's file, then in pytest's root folder.
    """
    spec = _marked(request, TOPOLOGY)
    if spec is not None and spec.endswith(PROFILES):
        for folder in (request.path.parent, request.config.rootpath):
            if (folder / spec).exists():
                return str(folder / spec)
    return spec


@pytest.fixture
def uetemu_transport(request: pytest.FixtureRequest) -> str | None:
    """The transport that the test is marked with.  None: unmarked."""
    return _marked(request, TRANSPORT)


@pytest.fixture(scope="session")
def uetemu_checks() -> Sequence[Any]:
    """Functions that get the run folder of every run that ends well; override it with your own."""
    return ()


@pytest.fixture
def uetemu_run(
    request: pytest.FixtureRequest, uetemu_topology: str | None, uetemu_transport: str | None
) -> Any:
    """``uetemu_run(scenario, *options, params={...})`` runs a scenario and returns its outcome.

    It is a :class:`emulator.pytest_plugin.runs.RunFactory`; ``uetemu_run.start`` begins a
    run and does not wait.
    """
    return _fixture(request, "_uetemu_run")


@pytest.fixture(scope="session")
def uetemu_run_factory(request: pytest.FixtureRequest) -> Any:
    """Runs scenarios as ``uetemu_run`` does, for fixtures of modules and sessions; heeds no mark.

    It is a :class:`emulator.pytest_plugin.runs.RunFactory`.
    """
    return _fixture(request, "_uetemu_run_factory")


@pytest.fixture
def uetemu_lab(request: pytest.FixtureRequest, uetemu_topology: str | None) -> Any:
    """``uetemu_lab(topology)`` builds a lab as ``uetemu up`` does; it is removed after the test.

    It is a :class:`emulator.pytest_plugin.labs.LabFactory`, which returns an
    :class:`emulator.dataplane.lab.Lab`.
    """
    return _fixture(request, "_uetemu_lab")
