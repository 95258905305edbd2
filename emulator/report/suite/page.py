"""The report of a suite as files: one HTML page with the ten parts, and the data of its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.report.run.figures import vega_lite
from emulator.report.run.figures.figure import Figure
from emulator.report.run.page import Section, rendered, write_with_data
from emulator.report.suite.folder import ReportedTest, SuiteFolder
from emulator.report.suite.parts import (
    accounting_tables,
    anomaly_table,
    comparability_tables,
    device_facts,
    host_facts,
    point_table,
    repeatability_table,
    switch_table,
    topology_table,
    total_sentence,
    transport_table,
)
from emulator.report.suite.results import sweep_figures, tables_of

#: The parts that the drafts ask for, in their order, by the names of their places in the page.
PARTS = {
    "device": "1. Device under test",
    "topology": "2. Topology",
    "configuration": "3. Configuration",
    "points": "4. Observation points",
    "host": "5. Hosts and endpoints",
    "results": "6. Results",
    "anomalies": "7. Anomalies",
    "accounting": "8. Trial accounting",
    "repeatability": "9. Repeatability",
    "comparability": "10. Comparability",
}


@dataclass(frozen=True)
class SuiteTestSection:
    """A test of part 6: what it found, as a section with its figures and tables."""

    test: ReportedTest
    section: Section

    @property
    def commands(self) -> Sequence[str]:
        """Return the commands of its trials, each once."""
        return list(dict.fromkeys(one.command for one in self.test.trials))


def suite_parts(suite: SuiteFolder) -> list[Section]:
    """Return the ten parts but for what part 6 has of the tests."""
    tables = {
        "topology": [topology_table(suite)],
        "configuration": [transport_table(suite), switch_table(suite)],
        "points": [point_table(suite)],
        "anomalies": [anomaly_table(suite)],
        "accounting": accounting_tables(suite),
        "repeatability": [repeatability_table(suite)],
        "comparability": comparability_tables(suite),
    }
    return [Section(name, title, tables=tables.get(name, ())) for name, title in PARTS.items()]


def suite_tests(suite: SuiteFolder) -> list[SuiteTestSection]:
    """Return the tests of part 6."""
    return [
        SuiteTestSection(
            test,
            Section(
                f"test-{test.number}",
                f"{test.number} {test.title}",
                sweep_figures(test),
                tables_of(test),
            ),
        )
        for test in suite.tests
    ]


def suite_html(suite: SuiteFolder, tests: Sequence[SuiteTestSection]) -> str:
    """Return the page.  It needs no other file and no network."""
    specs = {
        figure.name: {
            **(figure.spec or {}),
            "data": {"values": list(figure.records)},
            "config": vega_lite.CONFIG,
        }
        for figure in _figures(tests)
    }
    return rendered(
        "suite.html.j2",
        bool(specs),
        suite=suite,
        parts_of=suite_parts(suite),
        tests=tests,
        specs=specs,
        facts={"device": device_facts(suite), "host": host_facts(suite)},
        total=total_sentence(suite),
        measured=sum(test.measured for test in suite.tests),
        command=_command(suite),
    )


def _figures(tests: Sequence[SuiteTestSection]) -> list[Figure]:
    return [figure for one in tests for figure in one.section.figures]


def _command(suite: SuiteFolder) -> str:
    """Return the command that runs the same tests again."""
    data = suite.data
    words = [f"uetemu bench {data.get('suite')} --scale {data.get('scale')}"]
    words.append(f"--transport {','.join(map(str, data.get('transports') or ()))}")
    if data.get("fabric"):
        words.append(f"--fabric {data['fabric']}")
    if data.get("nodes", "kernel") != "kernel":
        words.append(f"--nodes {data['nodes']}")
    words.append(f"--seed {data.get('seed')} --seeds {data.get('seeds')}")
    words.append(f"--tests {','.join(test.number for test in suite.tests)}")
    return " ".join(words)


def write_suite_report(folder: Path, output: Path | None = None) -> Path:
    """Write the report of a suite folder; return the page's path.

    The page is ``report.html`` in the folder, or ``output``; the data of its figures are beside it.
    """
    suite = SuiteFolder.read(folder)
    tests = suite_tests(suite)
    return write_with_data(suite_html(suite, tests), folder, output, _figures(tests))
