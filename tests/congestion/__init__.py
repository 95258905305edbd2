"""Congestion control and path selection by themselves: no packets, time as an argument."""
