"""Packet delivery contexts: life, source half and destination half (UES 3.5.8)."""
