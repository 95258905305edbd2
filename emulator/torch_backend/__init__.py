"""PyTorch scripts on a fabric: their ranks, and torch.distributed over it; torch comes lazily."""
