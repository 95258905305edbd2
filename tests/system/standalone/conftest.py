"""The wire between two namespaces."""

from collections.abc import Iterator

import pytest

from tests.harness.lab.fep_wire import Wire, filters


@pytest.fixture(scope="module")
def good_wire() -> Iterator[Wire]:
    with Wire().up() as wire:
        yield wire


@pytest.fixture
def wire(good_wire: Wire) -> Iterator[Wire]:
    """A wire that a test may make bad; nothing may be left on its ends."""
    good_wire.policy = None
    yield good_wire
    good_wire.policy = None
    assert filters(good_wire.initiator) == filters(good_wire.target) == ""
