"""The NVMe/TCP target: subsystems, controllers, and a state machine for each connection."""
