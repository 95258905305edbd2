"""Routing: next hops of switches, computed from the topology alone.

``FabricProfile.routing`` names the way:

``shortest``
    every path of the fewest hops.
``dimension-order``
    a torus: along x until that is right, then y, then z, the shorter way round; both, where they
    are equal.
``minimal``
    a dragonfly: within the group, over one global link, within the group of the destination.
``valiant``
    a dragonfly: over any other group first, from there on minimal.
``up-down``
    up*/down*: no packet that has gone down a link goes up again, so that no packets can wait for
    each other in a circle, whatever the graph.
"""
