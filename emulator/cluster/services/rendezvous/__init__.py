"""The rendezvous of jobs: a store of keys and values over TCP, its server and its client."""
