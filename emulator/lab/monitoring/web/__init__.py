"""The page of ``uetemu top --web``: its contents, and the state that it draws."""
