"""Queue pairs of RoCEv2 and the two sides of their connections."""
