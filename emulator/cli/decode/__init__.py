"""``uetemu decode``: fields of packets, from captures or hexadecimal."""
