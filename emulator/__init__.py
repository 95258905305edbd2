"""Fabrics, endpoints and runs on Linux."""
