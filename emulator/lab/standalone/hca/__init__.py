"""``uetemu hca``: a RoCEv2 endpoint by itself, for one reliable connection with any RDMA stack."""
