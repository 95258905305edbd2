"""The switch ASIC: queues, ECN, trimming, load balancing and faults of each port, in eBPF.

``asic.bpf.c`` and its headers are the data path.  :mod:`program` brings it into the kernel,
:mod:`profile` defines what a port does, :mod:`ports` puts it there, :mod:`counters` reads it.
:mod:`virtual_state` is what the program shares with the engine where the clock is virtual.
"""
