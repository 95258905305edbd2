"""``uetemu nvme``: an NVMe/TCP target or host by itself, on the kernel's TCP."""
