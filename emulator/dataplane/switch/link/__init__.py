"""The link layer of cables (UES 5): retry (LLR) and credits (CBFC) as users choose them."""
