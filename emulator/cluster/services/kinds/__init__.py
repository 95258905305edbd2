"""Every kind of service, a module for each, which registers it."""
