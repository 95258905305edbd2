"""Power of servers by Redfish (DMTF DSP0266): a small service that pulls all of their cables."""
