"""Loss and refusal at a PDC's source: timers, inference, NACKs, retransmission (UES 3.5.15)."""
