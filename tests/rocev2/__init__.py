"""RoCEv2: its wire, its reliable connections, its endpoint."""
