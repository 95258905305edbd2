"""Routing protocols in the switches: FRR's daemons in each switch's namespace.

:mod:`choice` is what a user asks for, :mod:`speakers` who speaks with whom (pure), :mod:`render`
the configuration in FRR's own words, :mod:`daemons` brings it to life, :mod:`convergence` compares
the kernel's routes with what the topology asks for, :mod:`members` what it knows of stretched
rails, and :mod:`failure` times the way around a dead link.
"""
