"""The switch program: its C source, its layouts, how it is loaded and put on ports."""
