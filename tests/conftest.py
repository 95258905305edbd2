"""For all tests: what cannot run here is skipped by name, and what is quick runs first."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings
from xdist.remote import Producer

import tests.harness.sources_run  # noqa: F401

# isort: split
from emulator.pytest_plugin.runs import RunFactory, RunProcess
from tests import CHECKOUT
from tests.harness.beside import beside_others
from tests.harness.examples import NIGHTLY
from tests.harness.lab import stock_kernel
from tests.harness.spread_tests import SpreadScheduling

#: Which statements the tests prove (``uetemu conformance`` shows it), and the package's own plugin.
pytest_plugins = (
    "tests.conformance.plugin",
    "emulator.pytest_plugin.pytest_hooks",
    "emulator.pytest_plugin.plugin_fixtures",
)

#: A test that waits for a virtual machine may wait for all machines, one after the other (s).
MACHINES_S = 3600
#: Tests that need root: they build namespaces, load programs into the kernel or boot machines.
SYSTEM = Path(__file__).parent / "system"


@pytest.fixture(scope="session")
def readable_sources() -> Iterator[Path]:
    """A copy of the packages for tests as another user: the checkout may lie in root's home."""
    with tempfile.TemporaryDirectory(prefix="uetemu-sources-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        for package in ("uet", "emulator", "topologies", "scenarios"):
            shutil.copytree(CHECKOUT / package, folder / package)
        yield folder


@pytest.fixture
def start(uetemu_run: RunFactory) -> Callable[..., RunProcess]:
    """``start(*options, scenario=...)`` begins ``uetemu run``; what is left of it is removed."""

    def begin(*options: str, scenario: str = "allreduce") -> RunProcess:
        return uetemu_run.start(scenario, *options)

    return begin


@pytest.fixture(autouse=True)
def garbage_collection() -> Iterator[None]:
    """Verbs that a test calls in its process would leave the thresholds of a program of their own.

    Mappings of GPUs' memory, terabytes of addresses, wait for the collector.
    """
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Have a test that is to be ``alone`` wait for others, outside of its time limit.

    What its file has in common is made within.
    """
    alone, next_alone = (
        one is not None and one.get_closest_marker("alone") is not None for one in (item, nextitem)
    )
    with beside_others(alone=alone, next_alone=next_alone):
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return two more than processors: tests wait half of their time, for daemons and timers."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SpreadScheduling:
    """Keep the tests of a file together, for their fixtures, and have workers end together."""
    return SpreadScheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples are drawn, and let SIGINT end what tests start.

    Background jobs of a script ignore it (POSIX, Shell Command Language, 2.11), and so would their
    children.
    """
    settings.load_profile(NIGHTLY if "nightly" in config.option.markexpr else "default")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected: nearly all that is made stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Quick tests that need nothing, then those that build namespaces, then the slow ones.

    Workers that share them begin with the slow ones, and so end at about the same time.
    Nightly tests are left out, unless ``-m`` speaks of them or they are named one by one; those
    that boot a machine are among them, and those of drawn examples, which are more at night.
    """
    at_night = settings.get_current_profile_name() == NIGHTLY
    for item in items:
        if at_night and is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.nightly)
        if item.get_closest_marker("boots"):
            item.add_marker(pytest.mark.timeout(MACHINES_S))
            item.add_marker(pytest.mark.nightly)
    wanted = any(word in config.option.markexpr for word in ("nightly", "boots"))
    if not wanted and not any("::" in one for one in config.args):
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    astray = {
        item.location[0]
        for item in items
        if item.get_closest_marker("root") and SYSTEM not in item.path.parents
    }
    if astray and SYSTEM.parent in items[0].path.parents:
        raise pytest.UsageError(f"tests that need root lie in tests/system: {sorted(astray)}")
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason="needs root: builds namespaces"))
    items.sort(key=partial(_weight, slow_first=hasattr(config, "workerinput")))


def _weight(item: pytest.Item, *, slow_first: bool) -> tuple[bool, bool, bool]:
    boots, slow, root = (
        item.get_closest_marker(name) is not None for name in ("boots", "slow", "root")
    )
    return boots, slow != slow_first, root != slow_first


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests marked ``boots(lacking, boot)`` come last; what they wait for begins now.

    What has been collected stays to the end: it is no longer looked through for garbage.
    """
    if session.config.option.collectonly:
        return
    gc.collect()
    gc.freeze()
    for item in session.items:
        for mark in item.iter_markers("boots"):
            lacking, boot = mark.args
            if lacking() is None:
                stock_kernel.begin(boot)


def pytest_sessionfinish() -> None:
    stock_kernel.switch_off()
