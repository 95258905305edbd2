"""The semantic sublayer (UES 3.4)."""
