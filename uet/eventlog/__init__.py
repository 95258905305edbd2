"""The life of an endpoint as a qlog trace."""
