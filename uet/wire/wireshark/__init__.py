"""The Wireshark dissector, a Lua script generated from the layers."""
