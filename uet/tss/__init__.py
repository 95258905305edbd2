"""The transport security sublayer (UES 3.7)."""
