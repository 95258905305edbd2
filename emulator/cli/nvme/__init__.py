"""``uetemu nvme``: an NVMe/TCP target and its hosts."""
