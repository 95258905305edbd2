"""A real Prometheus scrapes a real run, and answers every query of the dashboard with data."""

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests import CHECKOUT
from tests.harness.runs.processes import SMALL
from tests.harness.runs.served_verb import BUDGET_S, ServedVerb

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed"),
]

FILES = CHECKOUT / "emulator" / "lab" / "monitoring" / "dashboards"
SCRAPE, DASHBOARD = FILES / "prometheus.yml", FILES / "grafana-uetemu.json"
TARGET = "127.0.0.1:9477"


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """``prometheus(target)`` starts one with the scrape file, but for its target."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(target: str) -> str:
        text = SCRAPE.read_text()
        assert text.count(TARGET) == 1
        config = tmp_path / "prometheus.yml"
        config.write_text(text.replace(TARGET, target))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        log = (tmp_path / "prometheus.log").open("wb")
        started.append(
            subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--web.listen-address={address}",
                 f"--storage.tsdb.path={tmp_path / 'data'}"],
                stdout=log, stderr=log,
            )
        )  # fmt: skip
        return f"http://{address}"

    yield start_one
    for process in started:
        process.terminate()
        process.wait(timeout=BUDGET_S)


def answered(prometheus: str, query: str) -> list[dict[str, Any]]:
    try:
        with urlopen(f"{prometheus}/api/v1/query?{urlencode({'query': query})}", timeout=60) as got:
            answer = json.load(got)
    except ConnectionError:
        return []
    except OSError as error:
        if isinstance(error.__cause__ or getattr(error, "reason", None), ConnectionError):
            return []
        raise
    assert answer["status"] == "success", (query, answer)
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def until_answered(prometheus: str, query: str) -> list[dict[str, Any]]:
    deadline = time.monotonic() + BUDGET_S
    while not (found := answered(prometheus, query)):
        assert time.monotonic() < deadline, f"no data for {query}"
        time.sleep(0.1)
    return found


def test_every_query_of_the_dashboard_is_answered_with_data(
    spawn: Callable[..., RunProcess], prometheus: Callable[[str], str]
) -> None:
    # switches that pause, so that there is something of everything
    run = spawn(*SMALL, "--sizes", "32KiB,1MiB", "--switch", "lossless")
    run.process.send_signal(signal.SIGSTOP)  # until somebody watches
    with ServedVerb("metrics", run.lab, "--follow", "--interval", "100ms") as served:
        database = prometheus(f"127.0.0.1:{urlsplit(served.url).port}")
        run.process.send_signal(signal.SIGCONT)
        assert run.finish().status == 0
        until_answered(database, "uetemu_run_ended == 1")
        asked = expressions()
        assert len(asked) >= 20
        for expression in asked:
            assert "rate(" not in expression  # per second of the wall clock: of no meaning here
            found = answered(database, expression.replace("$instance", ".*"))
            assert found, f"no data for {expression}"
            assert all(one["value"][1] != "NaN" for one in found), expression
        busbw = answered(database, "max(uetemu_row_bus_bandwidth_bytes_per_fabric_second)")
        best = max(row["busbw_gbps"] for row in run.result["rows"])
        assert float(busbw[0]["value"][1]) == pytest.approx(best * 1e9)
        (scraped,) = answered(database, "up")
        assert scraped["value"][1] == "1"
        assert scraped["metric"]["job"] == "uetemu"


def test_the_files_are_sound() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", SCRAPE], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(DASHBOARD.read_text())
    assert {one["name"] for one in content["templating"]["list"]} == {"datasource", "instance"}
    places = [tuple(panel["gridPos"].values()) for panel in content["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in content["panels"]}) == len(places)
    assert all(panel["description"] for panel in content["panels"])
    assert all('instance=~"$instance"' in expression for expression in expressions())
