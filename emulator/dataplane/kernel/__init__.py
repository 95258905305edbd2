"""The kernel's own mechanisms, one to a file: netlink, namespaces, shapers, filters, eBPF."""
