"""Traces of jobs: read from files of other tools, replayed over a fabric, and written again."""
