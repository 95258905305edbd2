"""Endpoints that run by themselves on an interface, against any stack."""
