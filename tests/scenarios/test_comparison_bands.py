"""The known stories about RoCEv2 and Ultra Ethernet, on one fabric each, over several seeds.

What is asserted is the order of things and what must never happen; how large the differences are is
recorded, for it depends on thresholds and sizes.
"""

import statistics
from collections.abc import Callable
from typing import Any

import pytest

from emulator.pytest_plugin.runs import RunFactory
from tests.harness.nightly import nightly_beyond
from tests.scenarios.test_traffic_bands import CROSSED, marked, on_a_fabric, run

Record = Callable[[str, object], None]
GO_BACK_N, SELECTIVE = "rocev2", "rocev2:recovery=selective_repeat"


def by_transport(result: dict[str, Any], **which: Any) -> dict[str, dict[str, Any]]:
    """The rows with those values, by transport; all carried the same octets."""
    rows = [row for row in result["rows"] if all(row[key] == which[key] for key in which)]
    found = {row["transport"]: row for row in rows}
    assert len(found) == len(rows)
    assert len({row["payload_bytes"] for row in rows}) == 1
    return found


@marked
def test_what_a_loss_costs(uetemu_run: RunFactory, record_property: Record, seed: int) -> None:
    """Go-back-N sends a window again for each lost frame, the others about one packet."""
    result = run(
        uetemu_run,
        "losssweep",
        *("--transport", f"uet,{GO_BACK_N},{SELECTIVE}", "--seeds", "1"),
        seed=seed,
        losses="0,10000",
        size="4MiB",
    )
    calm = by_transport(result, loss_ppm=0)
    lossy = by_transport(result, loss_ppm=10_000)
    for name, row in lossy.items():
        assert row["dropped_packets"] > 20
        assert calm[name]["dropped_packets"] == 0
        record_property(f"{name}: packets again without loss", calm[name]["retransmitted_packets"])
        assert calm[name]["efficiency"] > 0.8
        record_property(f"{name}: times as long", row["time_us"] / calm[name]["time_us"])
        record_property(
            f"{name}: packets again per lost frame",
            row["retransmitted_packets"] / row["dropped_packets"],
        )
    again = {
        name: row["retransmitted_packets"] / row["dropped_packets"] for name, row in lossy.items()
    }
    assert again[GO_BACK_N] > 5 * max(again["uet"], again[SELECTIVE])
    assert again["uet"] < 2
    assert again[SELECTIVE] < 2
    # The whole time hangs on whether one of the last frames is lost, for which there is a timer;
    # half of the messages have nothing to do with that.
    for name in ("uet", SELECTIVE):
        assert lossy[GO_BACK_N]["message_p50_us"] > 1.15 * lossy[name]["message_p50_us"]


@on_a_fabric
@pytest.mark.parametrize(("senders", "seed"), nightly_beyond(1, [(16, 1), (23, 1), (16, 2)]))
def test_incasts_with_pauses_with_losses_and_with_trimming(
    uetemu_run: RunFactory, record_property: Record, senders: int, seed: int
) -> None:
    """From sixteen senders, and from every other GPU of the fabric.

    Who is faster while pauses hold the excess back in buffers depends on their size, and is told
    only: what pauses cost is the victim's to tell.
    """
    result = run(
        uetemu_run,
        "incast",
        *("--transport", "uet,rocev2,rocev2:pfc=off", "--seeds", "1"),
        seed=seed,
        placement="any",
        senders=str(senders),
        size="256KiB",
        message="16KiB",
        in_flight="8",
    )
    rows = by_transport(result)
    for name, row in rows.items():
        record_property(f"efficiency of {name}", row["efficiency"])
    uet, lossless, lossy = rows["uet"], rows["rocev2"], rows["rocev2:pfc=off"]
    assert uet["trimmed_packets"] > 0
    assert uet["dropped_packets"] == uet["timeouts"] == 0
    assert lossless["dropped_packets"] == 0
    record_property("lossless: packets again", lossless["retransmitted_packets"])
    assert lossless["cnps"] > 0
    assert lossy["dropped_packets"] > 0
    assert lossy["retransmitted_packets"] > lossy["dropped_packets"]
    assert min(uet["efficiency"], lossless["efficiency"]) > 1.2 * lossy["efficiency"]


@pytest.mark.nightly
@marked
def test_rings_of_shuffled_ranks_wait_for_their_worst_path(
    uetemu_run: RunFactory, record_property: Record, seed: int
) -> None:
    """Each step of a ring ends with its slowest hop: one collision of hashed flows slows it all."""
    result = run(
        uetemu_run,
        "allreduce",
        *("--topology", "rail_clos:hosts=4", "--transport", "uet,rocev2,rocev2:qps=8"),
        *("--seeds", "1"),
        seed=seed,
        order="shuffled",
        sizes="2MiB",
    )
    rows = by_transport(result)
    for name, row in rows.items():
        record_property(f"efficiency of {name}", row["efficiency"])
    uet, hashed, spread = rows["uet"], rows["rocev2"], rows["rocev2:qps=8"]
    assert uet["efficiency"] > 1.15 * hashed["efficiency"]
    assert spread["efficiency"] > 1.05 * hashed["efficiency"]
    assert hashed["links_max_mean"] > max(spread["links_max_mean"], uet["links_max_mean"])


@marked
def test_hashed_flows_collide_and_sprayed_packets_do_not(
    uetemu_run: RunFactory, record_property: Record, seed: int
) -> None:
    result = run(
        uetemu_run,
        "permutation",
        *("--topology", CROSSED, "--transport", "uet,rocev2,rocev2:qps=8"),
        *("--seeds", "1"),
        seed=seed,
        sizes="2MiB",
    )
    rows = by_transport(result)
    for name, row in rows.items():
        record_property(f"efficiency of {name}", row["efficiency"])
        record_property(f"uplinks of {name}, max/mean", row["links_max_mean"])
    uet, hashed, spread = rows["uet"], rows["rocev2"], rows["rocev2:qps=8"]
    assert uet["efficiency"] > 0.75  # start and end are a tenth of so short a transfer
    assert uet["efficiency"] > 1.3 * hashed["efficiency"]
    assert spread["efficiency"] > 1.1 * hashed["efficiency"]
    assert hashed["links_max_mean"] > spread["links_max_mean"] > uet["links_max_mean"]
    assert hashed["dropped_packets"] == spread["dropped_packets"] == 0


@on_a_fabric
def test_a_victim_suffers_where_its_link_is_paused(
    uetemu_run: RunFactory, record_property: Record
) -> None:
    """Whether pauses reach the link of a hashed flow, its hash decides: these seeds say yes.

    Where it does not, the victim of RoCEv2 keeps as much as that of UET, or more.
    """
    result = run(
        uetemu_run,
        "victim",
        *("--transport", "uet,rocev2", "--seeds", "2"),
        seed=1,
        senders="8",
        size="512KiB",
    )
    shares: dict[str, list[float]] = {"uet": [], "rocev2": []}
    for seed in range(1, 3):
        alone = by_transport(result, senders=0, seed=seed)
        beside = by_transport(result, senders=8, seed=seed)
        for name, row in beside.items():
            shares[name].append(row["victim_share"])
        assert min(row["efficiency"] for row in alone.values()) > 0.85
        assert beside["rocev2"]["pauses"] > 0
        assert beside["rocev2"]["dropped_packets"] == 0
    for name, kept in shares.items():
        record_property(f"victim's shares with {name}", kept)
    assert min(shares["uet"]) > 0.5 > 1.3 * min(shares["rocev2"])
    assert statistics.median(shares["uet"]) > 1.3 * statistics.median(shares["rocev2"])


@on_a_fabric
def test_roce_wins_an_incast_that_its_buffers_hold(
    uetemu_run: RunFactory, record_property: Record
) -> None:
    """Lossless buffers keep the link busy from the first packet on; UET trims, and begins again."""
    result = run(
        uetemu_run,
        "incast",
        *("--transport", "uet,rocev2:classic", "--seeds", "2"),
        seed=1,
        senders="8",
    )
    rows = {row["transport"]: row for row in result["summary"]}
    assert [len(row["seeds"]) for row in rows.values()] == [2, 2]
    for name, row in rows.items():
        record_property(f"time of {name}", [row["time_min_us"], row["time_max_us"]])
        record_property(f"victim of {name}", row["victim_p99_us"])
    uet, classic = rows["uet"], rows["rocev2:classic"]
    assert classic["time_max_us"] < uet["time_min_us"]
    assert classic["efficiency"] > 0.94
    lost = ("dropped_packets", "retransmitted_packets", "timeouts")
    assert [classic[key] for key in lost] == [0, 0, 0]
    assert uet["trimmed_packets"] > 0
    # What waits, waits somewhere: in the queue at the receiver.
    assert uet["max_queue_bytes"] < 0.5 * classic["max_queue_bytes"]


@on_a_fabric
def test_adaptive_routing_takes_no_reordering_for_loss(
    uetemu_run: RunFactory, record_property: Record
) -> None:
    result = run(
        uetemu_run,
        "permutation",
        *("--topology", CROSSED, "--transport", "rocev2:classic,rocev2:adaptive"),
        *("--seeds", "1"),
        seed=1,
        sprayed=True,
        sizes="1MiB",
    )
    rows = by_transport(result)
    hashed, adaptive = rows["rocev2:classic"], rows["rocev2:adaptive"]
    record_property("hashed takes times as long", hashed["time_us"] / adaptive["time_us"])
    assert hashed["time_us"] > 1.3 * adaptive["time_us"]
    assert adaptive["links_max_mean"] < 1.1 < hashed["links_max_mean"]
    assert adaptive["retransmitted_packets"] == adaptive["timeouts"] == 0
    for endpoint in result["endpoints"].values():
        assert endpoint.get("transport.tx_naks", 0) == 0
        assert endpoint.get("transport.rx_duplicates", 0) == 0
