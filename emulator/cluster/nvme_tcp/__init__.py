"""NVMe over TCP without sockets and clocks: a target, an initiator, and asyncio around them."""
