"""The parts of a Clos fabric: tiers, trunks, ports, subnets, and the builder that joins them."""
