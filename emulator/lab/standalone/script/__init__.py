"""The operations that a user requests of a standalone endpoint, and their outcomes."""
