"""Monitoring of running labs and runs: metrics for Prometheus, a page for a browser."""
