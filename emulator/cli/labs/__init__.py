"""Verbs that make, watch, change and remove labs."""
