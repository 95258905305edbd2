"""The pytest plugin: fixtures of runs and labs, marks, and bounds that results must keep."""
