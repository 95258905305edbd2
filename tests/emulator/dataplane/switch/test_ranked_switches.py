"""The switches of a rank's lab: those of other ranks take no room in its tables."""

from emulator.dataplane.model.fabric import ModelDataplane
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch.bpf.layout import PORT_KEY
from emulator.dataplane.switch.switch_choice import DEFAULT, parse
from topologies.catalogue import load

SPEC = "rail_clos:hosts=2,gpus_per_host=4,spines=2"


def test_a_rank_configures_and_reads_its_own_switches_alone() -> None:
    topology = load(SPEC)
    worker_of = {node.name: int(node.name == "rail1") for node in topology.nodes}
    settings = FabricSettings(
        spec=SPEC, seed=1, clock="virtual", switch=parse(DEFAULT), worker_of=worker_of, worker=1
    )
    lab = ModelDataplane("t0ranked", topology, settings)
    asic = lab.asic
    assert asic is not None
    configured = {
        name
        for name, port in asic.ports.items()
        if any(asic.program.settings.get(PORT_KEY.pack(port.index)))
    }
    own = [name for name in asic.ports if name.startswith("rail1:")]
    assert configured == set(own)
    assert list(asic.counters()) == own
    lab.close()
