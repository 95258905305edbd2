"""Loss and refusal at a PDC's source: records, timers, inference, retransmission (UES 3.5.15)."""
