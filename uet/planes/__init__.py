"""A NIC with a fabric endpoint (FEP) in each plane of the fabric.

A *fabric interface* holds the FEPs of one NIC: one a plane, each with its own fabric address, PDCs
and congestion control.  The Ultra Ethernet Specification leaves it to the library above them how
work is shared out; :mod:`uet.planes.fabric_interface` describes the way taken here.
"""
