"""Priority flow control (IEEE 802.1Q 36): thresholds, pauses, and the agent of the host's clock."""
