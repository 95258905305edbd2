"""Mixtures of experts: routing of tokens, and the exchanges that carry them: a library."""
