"""The wire: scapy layers, the codec generated from them, and the decoding of frames."""
