"""Priority flow control under the virtual clock."""
