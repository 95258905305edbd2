"""Packet delivery contexts: life, turns, and what arrives for them (UES 3.5.8)."""
