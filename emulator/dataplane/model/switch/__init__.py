"""The switch program in Python, for a fabric without a kernel: the tables and the decisions."""
