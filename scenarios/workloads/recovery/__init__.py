"""Jobs that start, are checkpointed and go on after GPUs were lost: a library of scenarios."""
