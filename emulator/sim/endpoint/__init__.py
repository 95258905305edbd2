"""The endpoint of a GPU: its transport, its NIC, its schedule, its memory."""
