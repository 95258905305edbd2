"""Congestion controls of queue pairs: each module of this folder registers one."""
