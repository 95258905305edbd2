"""Fabric profiles: YAML files that describe a Clos fabric and its switches."""
