"""The source half of a PDC: what it sends, what ACKs do to it (UES 3.5.12, 3.5.20, 3.5.21)."""
