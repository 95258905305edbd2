"""The NVMe/TCP initiator: a state machine for each queue, and the host that drives them."""
