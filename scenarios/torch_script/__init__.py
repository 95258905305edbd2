"""PyTorch scripts whose collectives are those of scenarios.collectives (``uetemu torchrun``)."""
