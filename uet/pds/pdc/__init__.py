"""Packet delivery contexts: life, source half, and what arrives for them (UES 3.5.8)."""
