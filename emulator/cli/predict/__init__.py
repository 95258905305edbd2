"""``uetemu predict``: a cluster's log of nccl-tests beside the same test on an emulated fabric."""
