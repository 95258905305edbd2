"""The networks of a cluster beside the scale-out one: frontend, storage and management."""
