"""The numbers of route netlink: written out in uetemu, compared with pyroute2's."""

import pyroute2.netlink
import pyroute2.netlink.rtnl
import pytest

from emulator.dataplane.kernel import netlink

#: What pyroute2 has no name for, as linux/netlink.h has it.
UNNAMED = {"NLM_F_ACK_TLVS": 0x200, "NLMSGERR_ATTR_MSG": 1}
NAMES = [name for name in vars(netlink) if name.startswith(("NLM", "RTM"))]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_pyroute2(name: str) -> None:
    source = pyroute2.netlink.rtnl if name.startswith("RTM") else pyroute2.netlink
    assert getattr(netlink, name) == getattr(source, name, UNNAMED.get(name))
