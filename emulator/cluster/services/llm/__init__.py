"""A model server that speaks HTTP as OpenAI's does, its client, and what a stream's times are."""
