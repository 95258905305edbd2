"""What a running fabric is doing right now: rates and queues of every link direction."""
