"""What carries frames: the kernel's nodes and links, or their model in this process."""
