"""The packet delivery sublayer (UES 3.5)."""
