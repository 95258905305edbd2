"""The generated dissector as a script."""

from pathlib import Path

import pytest

from uet.wire.wireshark import dissector


@pytest.fixture(scope="session")
def lua(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("lua") / "uet.lua"
    script.write_text(dissector.dissector())
    return script
