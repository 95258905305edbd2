"""The switch ASIC: queues, ECN, trimming, load balancing and faults of each port, in eBPF.

``bpf/asic.bpf.c`` and its headers are the data path; :mod:`bpf.switch_program` brings it into the
kernel and :mod:`bpf.port_program` puts it on ports.  What can be said of a switch stands in
:mod:`parameters`.  What a user says (:mod:`switch_choice`) becomes thresholds of a profile
(:mod:`switch_profile`), fitted to a fabric (:mod:`switch_fitting`) and its cables
(:mod:`cable_fitting`).  :class:`fabric_asic.FabricAsic` has all switches of a lab.
:mod:`virtual_state` is what the program shares with the engine where the clock is virtual.
"""
