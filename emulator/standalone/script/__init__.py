"""The operations that a user asks a standalone endpoint for, and what has come of them."""
