"""Options of verbs that serve over HTTP."""

import pytest

from emulator.cli.labs.serving import check_pause_ns, reach_warning
from emulator.errors import UserError
from emulator.lab.monitoring.local_server import LocalServer


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_readers_from_elsewhere_are_warned_about(
    host: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalServer((host, 0), {}) as server:
        reach_warning(server)
        said = capsys.readouterr().err
        assert said.endswith(f"{server.url} can read this lab, without a password\n") == warned
        assert bool(said) == warned


def test_an_interval_that_would_disturb_the_fabric_is_refused() -> None:
    assert check_pause_ns("50ms") == 50_000_000
    with pytest.raises(UserError, match="take at least 50 ms of the wall clock"):
        check_pause_ns("49ms")
