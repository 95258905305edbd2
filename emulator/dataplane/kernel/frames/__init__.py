"""Frames under the virtual clock: lines, sockets of GPUs, switches of the kernel."""
