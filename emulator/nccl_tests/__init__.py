"""The files of nccl-tests: its JSON written, and logs of clusters read."""
