"""The link layer of cables under the virtual clock: retry (LLR) and credits (CBFC), UES 5."""
