"""One fabric endpoint on an interface of this machine, against any Ultra Ethernet stack."""
