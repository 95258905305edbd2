"""Serving of language models with prefill and decode on GPUs of their own: a library."""
