"""The present state of a fabric: rates and queues of every link direction."""
