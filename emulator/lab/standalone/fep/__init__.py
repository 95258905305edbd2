"""``uetemu fep``: an Ultra Ethernet endpoint by itself."""
