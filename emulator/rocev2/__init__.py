"""RoCEv2, the stack that Ultra Ethernet is compared with, behind the same sans-IO face.

The wire and the transport follow the InfiniBand Architecture Specification, volume 1, and its
annex A17 (RoCEv2); ``IBA`` in comments means these.
"""
