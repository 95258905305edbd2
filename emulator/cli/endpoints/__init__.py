"""``uetemu fep`` and ``uetemu hca``, and the options that they share."""
