"""Congestion control: NSCC, RCCC, a fixed window, and the contexts that share them (UES 3.6)."""
