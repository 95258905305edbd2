"""Hot modules compiled with mypyc: an option that makes runs faster and changes no result."""
