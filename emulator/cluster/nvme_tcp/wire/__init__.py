"""The wire of NVMe/TCP: PDUs, queue entries, data structures, and the reader of a connection."""
