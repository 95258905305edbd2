"""Building a fabric leaves the host's own settings alone."""

from collections.abc import Callable

import mininet.net
import pytest

from emulator.dataplane.lab import Lab

pytestmark = pytest.mark.root


def test_mininet_does_not_raise_limits_of_the_host(
    lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mininet.net.Mininet, "inited", False)
    monkeypatch.setattr(mininet.net, "fixLimits", lambda: pytest.fail("it did"))
    lab()
