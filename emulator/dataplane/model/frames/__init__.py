"""The frames of a fabric whose nodes are a model in this process."""
