"""Real services on the machines of a cluster: each a process in the machine's namespace."""
