"""Several processes share the work of one run of the virtual clock, window by window."""
