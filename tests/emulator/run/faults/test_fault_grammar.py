"""Test what a user says goes wrong: read as it is meant, or refused in a sentence that helps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.dataplane.switch.port_faults import Faults
from emulator.errors import UserError
from emulator.run.faults import grammar
from emulator.run.faults.condition import SOUND, Condition, from_data
from emulator.run.faults.grammar import timeline
from topologies import catalogue
from topologies.model import CableEnd, Link

FABRIC = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,spines=2")
SHARED = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,gpus_per_nic=2")


def link(name: str) -> Link:
    return FABRIC.link_at(CableEnd(*name.split(":")))


def stated(*texts: str) -> list[tuple[int, list[str]]]:
    """Return the time of a fault, and what is faulty from then on."""
    return [(moment.at_ns, moment.condition.words()) for moment in timeline(texts, FABRIC)]


def test_down_and_up_of_a_link_named_once() -> None:
    assert stated("t=2ms link rail0:up1 down; t=9ms up") == [
        (2_000_000, ["link rail0:up1 down"]),
        (9_000_000, []),
    ]


def test_a_link_goes_by_either_of_its_ends() -> None:
    assert stated("t=1us link rail0:up1 down; t=2us link spine1:down0 up")[-1] == (2000, [])


def test_a_switch_and_a_nic_are_all_of_their_cables() -> None:
    (switch,) = timeline(["t=0 switch spine0 down"], FABRIC)
    assert switch.condition.dead == {link("rail0:up0"), link("rail1:up0")}
    (nic,) = timeline(["t=0 nic h1g0 down"], FABRIC)
    assert nic.condition.dead == {link("rail0:down1")}
    (shared,) = timeline([f"t=0 nic {SHARED.nodes[2].server}n0 down"], SHARED)
    assert len(shared.condition.dead) == 3


def test_a_dead_gpu_keeps_its_cables_and_a_dead_server_takes_all() -> None:
    gpu, server = timeline(["t=1us gpu h1g0 dead; t=2us server h0 dead"], FABRIC)
    assert not gpu.condition.dead
    assert gpu.condition.dead_gpus == {"h1g0"}
    assert gpu.condition.separates
    assert gpu.condition.words() == ["gpu h1g0 dead"]
    assert server.condition.dead == {link("rail0:down0"), link("rail1:down0")}
    assert server.condition.dead_gpus == {"h0g0", "h0g1", "h1g0"}
    (shared,) = timeline([f"t=0 server {SHARED.servers[0].name} dead"], SHARED)
    assert len(shared.condition.dead) == 3  # to the NIC that the GPUs share, and its own
    assert from_data(server.condition.as_data(), FABRIC) == server.condition


def test_two_gpus_are_not_the_same() -> None:
    moments = timeline(["t=1us gpu h1g0 dead; t=2us gpu h1g1 dead"], FABRIC)
    assert moments[-1].condition.words() == ["gpu h1g0 dead", "gpu h1g1 dead"]


def test_a_cable_that_is_held_down_twice_needs_both_to_come_up() -> None:
    moments = timeline(["t=0 link rail0:up0 down; t=1us switch rail0 down; t=2us up"], FABRIC)
    assert [len(moment.condition.dead) for moment in moments] == [1, 4, 1]


def test_silent_faults_add_up_and_heal_together() -> None:
    moments = timeline(
        [
            "t=0 link rail0:up0 loss=1% corrupt=0.1%; t=1us rate=100Gbps",
            "t=2us link rail0:up0 blackhole; t=3us heal",
        ],
        FABRIC,
    )
    faulted = [moment.condition.of(link("rail0:up0")) for moment in moments]
    assert faulted[0] == Faults(loss=0.01, corruption=0.001)
    assert faulted[1] == Faults(loss=0.01, corruption=0.001, rate=0.25)
    assert faulted[2] == Faults(loss=0.01, corruption=0.001, rate=0.25, black_hole=True)
    assert moments[3].condition == SOUND


def test_a_black_hole_may_have_one_direction_which_either_end_can_name() -> None:
    cable = link("rail0:up0")
    ours, theirs = map(str, (cable.a, cable.b))
    texts = (f"{ours} blackhole=out", f"{theirs} blackhole=in", f"{theirs} blackhole=out")
    found = [timeline([f"t=0 link {text}"], FABRIC)[0].condition.of(cable) for text in texts]
    assert found[0] == found[1] == Faults(black_hole=True, one_way="out")
    assert found[2] == found[0].seen_from_b() == Faults(black_hole=True, one_way="in")
    assert (found[0].swallows, found[0].swallows_arrivals) == (True, False)
    assert (found[2].swallows, found[2].swallows_arrivals) == (False, True)


def test_thresholds_scale_with_a_rate_until_the_next() -> None:
    text = "t=0 link rail0:up0 rate=100Gbps thresholds=scaled; t=1us rate=200Gbps"
    first, second = (one.condition.of(link("rail0:up0")) for one in timeline([text], FABRIC))
    assert first == Faults(rate=0.25, scaled=True)
    assert second == Faults(rate=0.5)


def test_a_bit_error_ratio_is_read_and_written() -> None:
    (moment,) = timeline(["t=0 link rail0:up0 ber=1e-7"], FABRIC)
    cable = link("rail0:up0")
    assert moment.condition.of(cable) == Faults(bit_errors=1e-7)
    assert moment.condition.words() == ["link rail0:up0 ber=1e-07"]


def test_bit_errors_take_long_frames_more_often() -> None:
    faults = Faults(bit_errors=1e-6)
    assert faults.loss_of(1000) == pytest.approx(8e-3)
    assert faults.loss_of(64) == pytest.approx(5.12e-4)
    assert Faults(loss=0.5, bit_errors=1e-4).loss_of(5000) == 1


@pytest.mark.parametrize("ratio", ["0", "1", "1e-3", "1e-17", "1e999", "-1e-7", "1e7", "nan", ""])
def test_a_ratio_that_cannot_be_drawn_is_refused(ratio: str) -> None:
    with pytest.raises(UserError, match=r"no bit error ratio of 1e-16 to 0\.0001"):
        timeline([f"t=0 link rail0:up0 ber={ratio}"], FABRIC)


def test_a_gpu_loses_links_of_its_scale_up_network() -> None:
    fabric = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,scale_up=nvswitch2")
    text = "t=0us scale-up h0g1 links=9; t=0us scale-up h1g0 rate=30GB/s"
    first, last = timeline([text], fabric)
    assert first.scale_up
    assert dict(first.condition.scale_up) == {("h0g1",): 0.75}
    assert dict(last.condition.scale_up) == {("h0g1",): 0.75, ("h1g0",): 0.1}
    assert last.condition.words()[0] == "scale-up h0g1 has 0.75 of its rate"
    assert not last.condition.sound
    assert not last.condition.separates
    with pytest.raises(UserError, match="'13' is not 1 to 12, the links of scale-up h0g1"):
        timeline(["t=0us scale-up h0g1 links=13"], fabric)


def test_links_of_a_scale_up_network_fail_and_come_back() -> None:
    fabric = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,scale_up=nvswitch2")
    text = "t=1us scale-up h0g1 links=9; t=2us down; t=3us up; t=4us heal; t=5us flap every=2us"
    moments = timeline([f"{text} for=2us"], fabric)
    left = [dict(moment.condition.left_of_scale_up) for moment in moments]
    own = ("h0g1",)
    assert left == [{own: 0.75}, {own: 0}, {own: 0.75}, {}, {own: 0}, {}]
    assert moments[1].condition.words() == [
        "scale-up h0g1 down",
        "scale-up h0g1 has 0.75 of its rate",
    ]
    assert not moments[1].condition.separates  # its GPU lives


def test_a_link_of_a_mesh_is_named_by_both_of_its_ends() -> None:
    fabric = catalogue.load("rail_clos:hosts=2,gpus_per_host=4,scale_up=mi300x")
    text = "t=1us scale-up h0g2:h0g1 rate=16GB/s; t=2us scale-up h0g1:h0g2 down; t=3us up"
    first, second, _ = timeline([text], fabric)
    assert dict(first.condition.scale_up) == {("h0g1", "h0g2"): 0.25}
    assert second.condition.words()[0] == "scale-up h0g1:h0g2 down"
    with pytest.raises(UserError, match="h0g2 has no link to 'h1g2'; it has links to h0g0, h0g1"):
        timeline(["t=1us scale-up h0g2:h1g2 rate=16GB/s"], fabric)


def test_a_flap_is_down_for_the_first_half_of_each_period() -> None:
    assert stated("t=1us link rail0:up0 flap every=2us for=5us") == [
        (1000, ["link rail0:up0 down"]),
        (2000, []),
        (3000, ["link rail0:up0 down"]),
        (4000, []),
    ]


def test_several_options_are_one_timeline() -> None:
    assert stated("t=3us link rail0:up0 down", "t=1us nic h0g0 down; t=4us up") == [
        (1000, ["nic h0g0 down"]),
        (3000, ["nic h0g0 down", "link rail0:up0 down"]),
        (4000, ["link rail0:up0 down"]),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t=1ms link rail0:up9 down", "rail0 has no port 'up9'.*it has down0, down1, up0, up1"),
        ("t=1ms link rial0:up1 down", "no node 'rial0' .did you mean rail0"),
        ("t=1ms link rail0 down", "names no port; write link NODE:PORT, such as link rail0:down0"),
        ("t=1ms link down", "names no port|no node 'down'"),
        ("t=1ms switch h0g0 down", "no switch 'h0g0'"),
        ("t=1ms switch rail0:up0 down", "names a port; write switch rail0"),
        ("t=1ms nic rail0 down", "no GPU or NIC 'rail0'"),
        ("t=1ms rack h0 down", "'rack' is neither .* happens to them; write for example"),
        ("t=1ms lnik rail0:up1 down", "'lnik' is neither link, switch, nic.*did you mean link"),
        (
            "t=1ms server h0 down",
            "happens to a server: a server dies, until the iteration has ended",
        ),
        ("t=1ms gpu h0g0 flap every=1ms for=5ms", "happens to a gpu: a gpu dies, until"),
        ("t=1ms gpu h0g0 loss=1%", "'loss=1%' is nothing that happens to a gpu; take one of dead"),
        ("t=0us scale-up h0g0 rate=9Tbps", "at most the 3.6 Tbps of scale-up h0g0; leave it out"),
        ("t=0us scale-up h0g0 rate=1bps", "1bps is less than a millionth of 3.6 Tbps; take down"),
        ("t=0us scale-up h0g0 links=3", "no known number of links to a switch; write rate="),
        (
            "t=0us scale-up h0g0:h0g1 rate=1Gbps",
            "links of h0g0 lead to a switch; write scale-up",
        ),
        ("t=0us scale-up h0g0 links", "'links' is nothing .* without its value, as in links=10"),
        ("t=0us scale-up h0g0 down", "stays down, and its copies wait.*say when it is up, or take"),
        ("t=0us scale-up h0g0 up", "scale-up h0g0 is not down then; take the clause out"),
        ("t=0us scale-up h0g0 heal", "nothing silently strikes scale-up h0g0 then; take the"),
        ("t=0us scale-up h0g0 loss=1%", "'loss=1%' is nothing that happens to a scale-up; take"),
        ("t=1ms link rail0:up1 dead", "'dead' is nothing that happens to a link"),
        ("t=1ms gpu rail0 dead", "has no GPU 'rail0'"),
        ("t=1ms gpu h0g9 dead", "has no GPU 'h0g9'; did you mean|it has h0g0, h0g1, h1g0, h1g1"),
        ("t=1ms gpu h0g0:eth0 dead", "gpu h0g0:eth0 names a port; write gpu h0g0 for the GPU"),
        ("t=1ms server h7 dead", "has no server 'h7'.*it has h0, h1"),
        ("t=1ms gpu h0g0 dead; t=2ms dead", "gpu h0g0 is dead already; take the clause out"),
        ("t=1ms server h0 dead; t=2ms gpu h0g1 dead", "gpu h0g1 is dead already"),
        ("t=1ms gpu h0g0 dead now", "'now' follows dead, which takes nothing"),
        (
            "t=1ms link rail0:up1 dwon",
            "'dwon' is nothing that happens to a link.*mean down",
        ),
        ("t=1ms link rail0:up1", "does not say what happens to link rail0:up1"),
        ("t=1ms down", "does not say what is struck"),
        ("t=1ms switch rail0 loss=1%", "'loss=1%' is nothing that happens to a switch"),
        ("t=1ms link rail0:up1 loss = 1%", "'loss' is nothing .* to a link without its value"),
        ("t=1ms link rail0:up1 blackhole=1", "to a link; blackhole takes out, in or no value"),
        ("t=1ms link rail0:up1 thresholds=scaled", "goes with the rate that they are scaled by"),
        ("t=1ms link rail0:up1 rate=1Gbps thresholds=low", "'low' is not scaled"),
        ("t=1ms link rail0:up1 down up", "'up' follows down, which takes nothing"),
        ("t=1ms link rail0:up1 rate=0Gbps", "rate= is no good.*blackhole swallows everything"),
        ("t=1ms link rail0:up1 rate=800Gbps", "at most the 400 Gbps of link rail0:up1"),
        ("t=1ms link rail0:up1 rate=100", "has no unit for a rate"),
        ("t=1ms link rail0:up1 loss=0.1", "above 0% and at most 100%; write for example 0.5%"),
        ("t=1ms link rail0:up1 loss=101%", "at most 100%"),
        ("t=1ms link rail0:up1 loss=0.000000001%", "less than the switches can draw"),
        ("t=1ms link rail0:up1 loss=1% loss=2%", "has loss= twice"),
        ("t=1ms link rail0:up1 loss=1% delay=3us", "'delay=3us' is not one of rate=, loss="),
        ("t=1ms link rail0:up1 flap every=1ms", "lacks for="),
        ("t=1ms link rail0:up1 flap every=5ms for=1ms", "has 0 periods of 5 ms"),
        ("t=1ms link rail0:up1 flap every=1us for=1s", "1 to 1000 make a flap"),
        ("t=-1ms link rail0:up1 down", "t= is no time after the start"),
        ("t=soon link rail0:up1 down", "t= is no time after the start"),
        ("link rail0:up1 down", "does not say when.*such as t=2ms link rail0:up1 down"),
        ("t=1ms link rail0:up1 down;", "a clause that says nothing"),
        ("", "the fault .. says nothing; write for example link rail0:up1 down"),
        ("t=2ms link rail0:up1 down; t=1ms up", "is earlier: put the clauses in order of time"),
        ("t=2ms link rail0:up1 up", "is not down then; take the clause out"),
        ("t=1ms link rail0:up0 down; t=2ms switch rail0 up", "what is down is link rail0:up0"),
        ("t=1ms link rail0:up1 down; t=2ms down", "link rail0:up1 is down already"),
        ("t=1ms link rail0:up1 heal", "nothing silently strikes link rail0:up1 then"),
        ("t=1ms link rail0:up1 down; t=2ms heal", "write link rail0:up1 up"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        timeline([text], FABRIC)
    assert "\n" not in str(refusal.value)


def test_inside_a_server_no_switch_injects() -> None:
    cable = next(one for one in SHARED.links if not SHARED.node(one.b.node).is_switch)
    with pytest.raises(UserError, match="plugged into no switch"):
        timeline([f"t=0 link {cable.a} loss=1%"], SHARED)


ENDS = [str(end) for one in FABRIC.links for end in one.ends]
CLAUSES = st.one_of(
    st.builds("link {} {}".format, st.sampled_from(ENDS), st.sampled_from(["down", "up", "heal"])),
    st.builds(
        "switch {} {}".format,
        st.sampled_from([one.name for one in FABRIC.switches]),
        st.sampled_from(["down", "up"]),
    ),
    st.builds(
        "link {} {}".format,
        st.sampled_from(ENDS),
        st.sampled_from(
            [
                *("blackhole", "blackhole=out", "blackhole=in", "loss=0.25%"),
                *("corrupt=2% rate=50Gbps", "rate=50Gbps thresholds=scaled"),
            ]
        ),
    ),
)


@given(st.lists(CLAUSES, max_size=8))
def test_a_condition_in_words_and_as_data_is_the_same_condition(texts: list[str]) -> None:
    condition = SOUND
    for text in texts:
        (clause,) = grammar.parse(text, FABRIC)
        try:
            condition = grammar.after(condition, clause)
        except UserError:
            continue  # no change, as sentences above say
    assert from_data(condition.as_data(), FABRIC) == condition
    again = Condition()
    for words in condition.words():
        for clause in grammar.parse("; ".join(_parted(words)), FABRIC):
            again = grammar.after(again, clause)
    assert again == condition
    assert again.dead == condition.dead


def _parted(words: str) -> list[str]:
    """A blackhole, and what else strikes its link, are clauses of their own."""
    kind, name, *reported = words.split()
    alone = ("down", *grammar.BLACK_HOLES)
    parts = [[word] for word in reported if word in alone]
    parts.append([word for word in reported if word not in alone])
    return [" ".join([kind, name, *part]) for part in parts if part]
