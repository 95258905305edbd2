"""What people do in a lab by the host's clock: captures, endpoints, metrics, configurations."""
