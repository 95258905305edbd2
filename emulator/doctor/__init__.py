"""What the kernel of this machine can do, and what stands in for what it lacks."""
