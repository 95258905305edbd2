"""The code points of a lab, for its switches and its endpoints alike.

UES 4.1 gives roles and leaves the numbers to the operator.  Data and control are what endpoints
default to; :func:`endpoint_fields` configures endpoints for what switches write.
"""

from __future__ import annotations

from emulator.dataplane.switch.switch_profile import CodePoints
from uet.config import FepConfig

#: Of a lab: trimmed packets are AF11, those of the last hop AF12 (RFC 2597).
LAB = CodePoints(
    data=FepConfig.dscp_data,
    control=FepConfig.dscp_control,
    trimmed=10,
    trimmed_last_hop=12,
)


def endpoint_fields(points: CodePoints = LAB) -> dict[str, int | None]:
    """Return the fields of ``FepConfig`` that an endpoint behind these switches must have.

    See :class:`uet.config.FepConfig`.

    A trimmed packet is recognised by its code point alone. The NACK for it depends on the code
    point, too, which shows whether the last hop trimmed (UES 3.5.15: TRIMMED, TRIMMED_LASTHOP).
    """
    return {
        "dscp_data": points.data,
        "dscp_control": points.control,
        "dscp_trimmed": points.trimmed,
        "dscp_trimmed_lasthop": points.trimmed_last_hop,
    }


def rocev2_fields(points: CodePoints = LAB) -> dict[str, int]:
    """Return the fields of ``HcaConfig`` that an endpoint in the same lab must have.

    See :class:`emulator.rocev2.config.HcaConfig`.

    Data keep the code point that NICs come with: one that belongs to no role, so that switches
    never trim them.  CNPs have the class of control packets, as NICs give them one of their own.
    """
    from emulator.rocev2.config import HcaConfig

    return {"dscp_data": HcaConfig.dscp_data, "dscp_cnp": points.control}
