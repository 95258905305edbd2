"""Clients that a scenario starts on machines: each is a program with JSON in and JSON out."""
