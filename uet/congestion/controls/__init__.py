"""Congestion controls of sources: each module of this folder registers one."""
