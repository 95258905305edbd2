"""Routing protocols in the switches: FRR's daemons in each switch's namespace.

:mod:`control_plane_choice` is what a user requests, and :mod:`speakers` who speaks with whom
(pure). :mod:`render` writes the configuration in FRR's own words, and :mod:`daemons` brings it to
life. :mod:`convergence` compares the kernel's routes with those of the topology, and :mod:`members`
its entries for stretched rails. :mod:`failure` times the way around a dead link.
"""
