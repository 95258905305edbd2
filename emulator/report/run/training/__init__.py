"""The course of trainings in a run, and its event files for TensorBoard."""
