"""Scenarios by name and from a user's file, and what is said of files that are none."""

from pathlib import Path

import pytest

import scenarios
from emulator import scenario
from emulator.errors import UserError
from topologies.catalogue import load as load_topology

GOOD = '''"""A user's own experiment.

More about it.
"""
from dataclasses import dataclass
from emulator.scenario import Trial, parameter
from topologies.parts.design_parameters import COUNT, TIME

@dataclass(frozen=True)
class Parameters:
    senders: int = parameter(2, COUNT, help="how many send")
    gap: int = parameter(0, TIME, help="between sends")
    tries: tuple = parameter((1, 2), COUNT, many=True, help="a list")

def topology(parameters):
    return "rail_clos"

def schedules(parameters, topology, seed):
    return [] if parameters.senders == 7 else [1 / (parameters.senders - 3)]

def measures(parameters, topology, trial, outcome):
    return {}
'''


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_names_are_those_that_ship() -> None:
    assert "allreduce" in scenario.names()
    assert "collectives" not in scenario.names()
    assert "blocks" not in scenario.names()  # a module of a room that is a library


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty room of ``scenarios``, whose name no other test imports."""
    folder = tmp_path / tmp_path.name
    folder.mkdir()
    monkeypatch.setattr(scenarios, "__path__", [*scenarios.__path__, str(tmp_path)])
    return folder


def test_scenarios_in_rooms_have_their_plain_names(room: Path) -> None:
    (room / "__init__.py").write_text("HOLDS_SCENARIOS = True\n")
    (room / "tempest.py").write_text(GOOD)
    assert "tempest" in scenario.names()
    assert scenario.load("tempest").name == "tempest"


def test_rooms_that_do_not_say_so_are_libraries(room: Path) -> None:
    (room / "__init__.py").write_text("")
    (room / "tempest.py").write_text(GOOD)
    assert "tempest" not in scenario.names()


def test_two_scenarios_of_one_name_are_refused(room: Path) -> None:
    (room / "__init__.py").write_text("HOLDS_SCENARIOS = True\n")
    (room / "incast.py").write_text(GOOD)
    with pytest.raises(UserError, match=r"two scenarios are called incast: .*rename one"):
        scenario.load("incast")


def test_a_users_file(tmp_path: Path) -> None:
    mine = scenario.load(write(tmp_path, GOOD))
    assert (mine.name, mine.title) == ("mine", "A user's own experiment")
    parameters = mine.parameters({"senders": "4", "gap": "1.2us", "tries": "3,4"})
    assert (parameters.senders, parameters.gap, parameters.tries) == (4, 1200, (3, 4))


def test_a_file_named_like_a_library_module_does_not_replace_it(tmp_path: Path) -> None:
    import random

    scenario.load(write(tmp_path, GOOD, "random.py"))
    import random as again

    assert again is random


def test_errors_of_the_scenario_name_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    mine = scenario.load(path)
    topology = load_topology("rail_clos")
    with pytest.raises(UserError, match=r"mine\.py, line 19: schedules failed: ZeroDivision"):
        mine.schedules(mine.parameters({"senders": "3"}), topology, 1)
    with pytest.raises(UserError, match="nothing to run"):
        mine.schedules(mine.parameters({"senders": "7"}), topology, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def topology(:\n", r"mine\.py, line 1: invalid syntax"),
        ("import nothing_of_this_name\n", r"mine\.py, line 1: import failed: ModuleNotFound"),
        ("x = 1\n\ny = x / 0\n", r"mine\.py, line 3: import failed: ZeroDivision"),
        ("x = 1\n", "lacks Parameters and topology and schedules and measures"),
        (GOOD.replace("def measures", "def measure"), "lacks measures"),
        (GOOD.replace("@dataclass(frozen=True)", ""), "must be a frozen dataclass"),
        (GOOD.replace('parameter(0, TIME, help="between sends")', "0"), "gap has no kind"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        scenario.load(write(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("alreduce", "did you mean allreduce"),
        ("collectives", "there is no scenario 'collectives'"),
        ("./nowhere.py", "there is no scenario file nowhere.py"),
        ("os", "there is no scenario 'os'"),
        ("", "there is no scenario ''"),
        ("..", "there is no scenario '..'"),
    ],
)
def test_an_unknown_scenario_is_one_sentence(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        scenario.load(name)
    assert "\n" not in str(caught.value)


def test_a_file_that_lies_in_the_directory_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"write \./mine\.py"):
        scenario.load("mine")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sender": "2"}, "did you mean senders"),
        ({"gap": "5 parsecs"}, "gap: '5 parsecs' has the unknown unit"),
        ({"senders": "-1"}, "senders"),
    ],
)
def test_bad_values_are_one_sentence(tmp_path: Path, given: dict[str, str], words: str) -> None:
    mine = scenario.load(write(tmp_path, GOOD))
    with pytest.raises((UserError, ValueError), match=words) as caught:
        mine.parameters(given)
    assert "\n" not in str(caught.value)


def test_rows_of_one_program_compile_it_once(tmp_path: Path) -> None:
    text = GOOD.replace(
        "def schedules(parameters, topology, seed):",
        "calls = []\n\n\ndef compile():\n    calls.append(1)\n    return []\n\n\n"
        "def schedules(parameters, topology, seed):\n"
        "    return [Trial(collective='two', size_bytes=1, compile=compile, inputs=lambda r: {},\n"
        "        expected=lambda r: {}) for _ in range(2)]\n\n\n"
        "def others(parameters, topology, seed):",
    )
    loaded = scenario.load(write(tmp_path, text))
    for trial in loaded.schedules(loaded.parameters({}), load_topology("pod:hosts=2"), 1):
        assert trial.compile() == trial.compile() == ()
    assert loaded.module.calls == [1]


@pytest.mark.parametrize("name", scenario.names())
def test_the_sheet_has_defaults_as_users_write_them(name: str) -> None:
    form = scenario.load(name)
    kind = form.module.Parameters
    lines = form.sheet().rpartition(f"{name} takes:\n")[2].splitlines()
    stated = dict(line.split()[0].split("=", 1) for line in lines)
    given = {
        key: value
        for key, value in stated.items()
        if (name, key) not in {("trace", "root"), ("trace", "unpacked")} and value
    }
    assert form.parameters(given) == kind()
