"""The training step of a language model as a scenario: rows, scaling, elastic jobs, refusals."""

import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.measures.ideal import ideal_ns
from emulator.scenario import Outcome, Trial
from emulator.transports.wire_cost import WireCost
from scenarios.training_jobs import llm
from scenarios.workloads.transformer.step_trial import StepTrial
from topologies.catalogue import load
from topologies.model import TopologyError

WIRE = WireCost(around_bytes=122, payload_mtu=4096)
QUICK = {"layers": "2", "tp": "2", "pp": "2", "batch": "4", "scale": "4096"}


def trials(spec: str = "", **given: str) -> list[Trial]:
    module = scenario.load("llm")
    parameters = module.parameters(given)
    return module.schedules(parameters, load(spec or str(module.topology(parameters))), 1)


def test_the_default_is_a_step_of_24_gpus_on_the_reference_cluster() -> None:
    (trial,) = trials()
    facts = trial.facts
    assert (facts["gpus"], facts["parallel"], facts["micro_batches"]) == (24, "4x1x2x3", 4)
    assert facts["scale"] == 256
    assert facts["bubble_formula"] == pytest.approx(2 / 6)
    assert facts["fabric_bytes_derived"] > 0
    assert facts["roofline_us"] > facts["compute_us"] > 0
    assert llm.topology(llm.Parameters()) == "rail_clos:hosts=6,gpus_per_host=4"
    assert llm.topology(llm.Parameters(tp=8)) == "rail_clos:hosts=6,gpus_per_host=8"


def test_sizes_of_the_model_may_be_changed() -> None:
    (trial,) = trials(**QUICK, hidden="2048", heads="16", model="70b")
    assert trial.facts["layers"] == 2
    layer = 2 * 2048 * (2048 + 8 * 128) + 3 * 2048 * 28672 + 2 * 2048
    assert trial.facts["weights"] == 2 * layer + 2 * 128256 * 2048 + 2048
    (whole,) = trials(layers="0", batch="2", scale="65536")
    assert whole.facts["layers"] == 32


def test_more_replicas_share_a_batch() -> None:
    rows = trials(**QUICK, dp="1,2,4")
    assert [row.facts["micro_batches"] for row in rows] == [4, 2, 1]
    assert [row.facts["gpus"] for row in rows] == [4, 8, 16]
    assert all(row.fresh for row in rows)


def _outcome(time_ns: int) -> Outcome:
    return Outcome(times_ns=(time_ns,), ideal_ns=time_ns, wrong=0, counters={})


def test_the_speed_up_is_drawn_below_the_last_row() -> None:
    module = scenario.load("llm")
    parameters = module.parameters({**QUICK, "dp": "1,2", "show": "scaling"})
    topology = load(str(module.topology(parameters)))
    first, second = module.schedules(parameters, topology, 1)
    row = module.measures(parameters, topology, first, _outcome(400_000))
    assert row["speedup"] == 1
    assert "steps" not in row
    row = module.measures(parameters, topology, second, _outcome(250_000))
    assert (row["speedup"], row["speedup_ideal"]) == (pytest.approx(1.6), 2)
    text = "\n".join(row["steps"])
    assert "   8     250.00      1.60    2.00" in text
    assert "165.0 years on 1" in text
    assert row["mfu"] == pytest.approx(second.facts["gpu_flops"] / (250e-6 * 4096 * 989e12))
    row = module.measures(parameters, topology, first, _outcome(500_000))  # another transport
    assert (row["speedup"], "steps" in row) == (1, False)
    row = module.measures(parameters, topology, second, _outcome(250_000))
    assert row["speedup"] == 2
    assert row["jct_ratio"] == pytest.approx(250 / second.facts["roofline_us"])


def test_replicas_of_an_elastic_job_get_their_state_and_stay_where_they_are() -> None:
    rows = trials(**QUICK, dp="1,2,1", elastic="on")
    fixed = trials(**QUICK, dp="1,2,1")
    jobs = [row.run.jobs[0] for row in rows if isinstance(row, StepTrial)]
    assert [job.gpus for job in jobs] == [(0, 1, 4, 5), tuple(range(8)), (0, 1, 4, 5)]
    assert [len(job.handovers) for job in jobs] == [0, 4, 0]
    assert {one.destination for one in jobs[1].handovers} == {2, 3, 6, 7}
    state = 16 * 4 * jobs[1].step.gpu_weights / 4096
    more = rows[1].size_bytes - fixed[1].size_bytes
    assert more == pytest.approx(float(state), rel=1e-3)


def test_late_gradients_make_a_longer_ideal() -> None:
    ideals = {}
    for overlap in ("on", "off"):
        given = {**QUICK, "overlap": overlap, "dp": "4", "pp": "1", "scale": "256", "tp": "1"}
        (trial,) = trials(**given)
        topology = load(str(llm.topology(scenario.load("llm").parameters(given))))
        ideals[overlap] = ideal_ns(topology, trial.compile(), WIRE)
    assert ideals["off"] > ideals["on"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dp": "3"}, "a multiple of 3"),
        ({"batch": "1"}, "a multiple of 2"),
        ({"tp": "3"}, "choose a divisor"),
        ({"hidden": "4095"}, "heads divide the hidden size"),
        ({"heads": "4"}, "key-value heads divide them"),
        ({"order": "gpipe", "pp": "1"}, "order changes nothing beside pp=1"),
        ({"sp": "off", "tp": "1", "pp": "1", "dp": "8"}, "sp changes nothing beside tp=1"),
        ({"order": "gpipe", "interleave": "2", "layers": "12", "batch": "12"}, "order=1f1b"),
        ({"efficiency": "0"}, "never ends"),
        ({"batch": "16384"}, "a smaller batch"),
        ({"scale": "1", "layers": "0", "batch": "64"}, "take scale=104 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        trials(**given)


def test_a_fabric_that_is_too_small_is_refused() -> None:
    with pytest.raises(UserError, match="needs 24 GPUs and topology rail_clos has 8"):
        trials("rail_clos:hosts=2,gpus_per_host=4")
    with pytest.raises(TopologyError, match="zero is 4"):
        trials(zero="4")
