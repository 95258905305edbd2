"""Memory that peers reach by key: regions, writes, reads and atomic operations (UES 3.4)."""
