"""Drawings, tables and files of other tools, made from a topology."""
