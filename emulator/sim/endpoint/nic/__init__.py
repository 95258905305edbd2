"""NICs of endpoints: packet sockets, one port or several, and what waits at them."""
