"""The Ultra Ethernet transport, without sockets and clocks."""
