"""The endpoint of a GPU: its agent process, its NIC, its schedule, its memory."""
