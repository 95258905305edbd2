"""The virtual clock: real frames through the kernel's own switches, in time that waits for work."""
