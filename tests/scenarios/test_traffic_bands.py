"""Test what must be seen in traffic scenarios, over several seeds, held against :mod:`bands`.

Sizes are such that start and end, which cost about ten microseconds whatever the size, are a small
part, or that a warm-up takes them away.
"""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from emulator.dataplane.kernel import namespaces
from emulator.pytest_plugin.runs import RunFactory
from tests.harness.nightly import nightly_beyond
from tests.harness.runs.bands import (
    CREDITED_INCAST,
    DEEP_INCAST,
    INCAST,
    LINK_BLACK,
    LINK_SLOW,
    OBLIVIOUS_SLOWER,
    ONE_PATH_SLOWER,
    PERMUTATION,
    VICTIM,
    VICTIM_ALONE,
    Band,
    around_target,
    within,
)
from tests.harness.runs.conservation import troubles
from tests.harness.runs.whole_run import held
from topologies.analysis.round_trip import mtu_frame_bytes, plane_bdp_bytes
from topologies.catalogue import load

BUDGET_S = 400.0
SEEDS = (1, 2)
CROSSED = "rail_clos:hosts=4,gpus_per_host=2,spines=4,uplinks_per_spine=1"

_MARKS = [
    pytest.mark.slow,
]
Record = Callable[[str, object], None]


def on_a_fabric(test: Any) -> Any:
    for mark in _MARKS:
        test = mark(test)
    return test


def marked(test: Any) -> Any:
    return pytest.mark.parametrize("seed", nightly_beyond(1, SEEDS))(on_a_fabric(test))


def test_a_row_is_held_against_every_band() -> None:
    good = {"goodput_share": 0.93, "jain": 0.99, "timeouts": 0, "dropped_packets": 0}
    assert within(good, INCAST) == []
    bad = {**good, "goodput_share": 0.5, "timeouts": 2, "jain": None}
    assert within(bad, INCAST) == [
        "goodput_share is 0.5, below 0.9",
        "jain is None, which is no number",
        "timeouts is 2, above 0",
    ]
    assert Band("x", low=1, high=2).trouble({"x": 2}) is None


def run(
    runs: RunFactory, scenario: str, *options: str, seed: int, sprayed: bool = False, **params: str
) -> dict[str, Any]:
    """Return ``result.json`` of a run in which every octet is right and no packet goes astray.

    Nor does a packet overtake another of its path, unless switches spray (``sprayed``).
    """
    done = runs(
        *(scenario, *options, "--seed", str(seed), "--format", "json"),
        *("--capture", "none" if sprayed else "all", "--snaplen", "headers"),
        params={"warmups": "0"} | params,
        budget_s=BUDGET_S,
    )
    assert not namespaces.of_lab(done.folder.name)
    result = held(done.folder, sprayed=sprayed)
    (done.folder / "capture.pcapng").unlink(missing_ok=True)
    assert result == json.loads(done.output)
    assert result["fidelity"]["verdict"] == "exact"
    return result


@marked
def test_incast_fills_its_link_at_the_target_queue_and_loses_nothing(
    uetemu_run: RunFactory, record_property: Record, seed: int
) -> None:
    # Windows of three packets take turns: rates over less than about 1 ms are further apart.
    result = run(uetemu_run, "incast", seed=seed, senders="16", size="4MiB")
    (row,) = result["rows"]
    topology = load(result["topology"])
    queue = around_target(plane_bdp_bytes(topology, mtu_frame_bytes(topology)))
    for band in (*INCAST, queue):
        record_property(band.key, row[band.key])
    assert within(row, (*INCAST, queue)) == [], result["fidelity"]
    # Trimming had to be survived, and a single lost packet would have been told.
    assert row["trimmed_packets"] == row["retransmitted_packets"] > 0
    lossy = copy.deepcopy(result)
    lossy["ports"]["rail0:down0"]["asic"]["classes"]["data"]["packets"] -= 1
    assert len(troubles(lossy, topology)) == 2  # at the port and in its switch


@on_a_fabric
@pytest.mark.parametrize(
    ("senders", "placement"), nightly_beyond(1, [("16", "any"), ("63", "rail"), ("32", "any")])
)
def test_credit_keeps_the_link_of_a_large_incast_busy(
    uetemu_run: RunFactory, record_property: Record, senders: str, placement: str
) -> None:
    """However many first packets are trimmed; each of them is sent once more."""
    result = run(
        uetemu_run,
        "ccsweep",
        seed=1,
        senders=senders,
        placement=placement,
        cc="rccc",
        profiles="shallow",
        trims="on",
    )
    (row,) = result["rows"]
    record_property("time", row["time_us"])
    assert within(row, CREDITED_INCAST) == []
    assert row["trimmed_packets"] == row["retransmitted_packets"] > 0


@marked
def test_without_trimming_deep_queues_lose_little_time(
    uetemu_run: RunFactory, record_property: Record, seed: int
) -> None:
    # Few writes under way: otherwise the first windows, whole and all at once, decide.
    words = ("incast", "--switch", "deep")
    result = run(uetemu_run, *words, seed=seed, senders="8", message="16KiB", in_flight="8")
    (row,) = result["rows"]
    record_property("efficiency", row["efficiency"])
    assert within(row, DEEP_INCAST) == []
    assert row["dropped_packets"] == row["retransmitted_packets"] > 0


@marked
def test_a_slow_uplink_is_not_taken_for_loss(
    uetemu_run: RunFactory, record_property: Record, seed: int
) -> None:
    rows = run(uetemu_run, "linkfail", seed=seed, size="1MiB", fail="slow", slow_at="0")["rows"]
    for row in rows:
        record_property(f"efficiency with {row['spray']}", row["efficiency"])
        assert within(row, LINK_SLOW) == []
        assert row["dropped_packets"] == 0
        assert row["retransmitted_packets"] == row["trimmed_packets"]
    assert rows[0]["time_us"] < rows[1]["time_us"]  # REPS, oblivious


@pytest.mark.nightly
@marked
def test_spraying_comes_close_to_the_ideal_and_one_path_does_not(
    uetemu_run: RunFactory, record_property: Record, seed: int
) -> None:
    sprayed = run(
        uetemu_run,
        "lbsweep",
        *("--topology", CROSSED),
        seed=seed,
        size="6MiB",
        sprayed=True,
        sprays="reps,oblivious",
        balances="flow,packet",
    )
    rows = {f"{row['spray']}/{row['balance']}": row for row in sprayed["rows"]}
    (hashed,) = run(
        uetemu_run,
        "permutation",
        *("--topology", CROSSED, "--transport", "uet:delivery=rod"),
        seed=seed,
        sizes="3MiB",
    )["rows"]
    # Half the size is enough to tell, and takes long enough; both are held against their ideals.
    slower = {name: row["efficiency"] / hashed["efficiency"] for name, row in rows.items()}
    for name, row in rows.items():
        record_property(f"efficiency of {name}", row["efficiency"])
        record_property(f"one path is slower than {name}", slower[name])
    missed = {name: wrong for name, row in rows.items() if (wrong := within(row, PERMUTATION))}
    assert missed == {}, sprayed["fidelity"]
    assert min(slower.values()) >= ONE_PATH_SLOWER
    # and the reason is the balance of the uplinks
    assert max(row["links_max_mean"] for row in rows.values()) < 1.3 < hashed["links_max_mean"]


@marked
def test_the_victim_keeps_its_share(
    uetemu_run: RunFactory, record_property: Record, seed: int
) -> None:
    # The first collision, of nine full windows, costs a tenth of so short a transfer: it is over
    # when the iteration that counts begins, and few writes under way let it not come again.
    result = run(
        uetemu_run,
        "victim",
        *("--endpoints", "kept"),
        message="32KiB",
        in_flight="16",
        seed=seed,
        senders="8",
        size="1MiB",
        warmups="1",
    )
    alone, beside = result["rows"]
    record_property("victim_share", beside["victim_share"])
    assert within(alone, VICTIM_ALONE) == [], result["fidelity"]
    assert within(beside, VICTIM) == [], result["fidelity"]


@pytest.mark.nightly
@marked
def test_a_black_uplink_costs_little_more_than_its_capacity(
    uetemu_run: RunFactory, record_property: Record, seed: int
) -> None:
    result = run(
        uetemu_run,
        "linkfail",
        seed=seed,
        size="8MiB",
        sprays="reps",
        fail="black",
    )
    (row,) = result["rows"]
    record_property("efficiency", row["efficiency"])
    assert within(row, LINK_BLACK) == [], result["fidelity"]
    assert row["timeouts"] == 0
    reps, oblivious = run(uetemu_run, "linkfail", seed=seed, size="2MiB", fail="black")["rows"]
    slower = oblivious["time_us"] / reps["time_us"]
    record_property("oblivious spraying is slower", slower)
    assert slower >= OBLIVIOUS_SLOWER
