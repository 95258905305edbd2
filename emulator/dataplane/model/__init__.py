"""A fabric's nodes as a model in this process, for machines where nobody is root."""
