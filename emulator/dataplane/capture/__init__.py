"""Captures of ports into one pcapng file, afterwards or live."""
