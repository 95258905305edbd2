"""The Ultra Ethernet transport, without sockets and clocks."""

from emulator.compiled import finder

finder.install()
