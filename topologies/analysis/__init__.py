"""Properties computed from a topology: capacity, failure domains, deadlocks, round trips."""
