"""Congestion control of RoCEv2: DCQCN and the pacing of queue pairs."""
