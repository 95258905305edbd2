"""Parts that designs are put together from: servers, NICs, scale-up networks, parameters."""
