"""The RoCEv2 wire: opcodes, headers, ICRC, packets."""
