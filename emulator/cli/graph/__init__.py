"""``uetemu graph``: drawings, tables and exports."""
