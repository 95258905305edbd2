"""Figures of a report: one idea in each file, their data and how Vega-Lite draws them."""
