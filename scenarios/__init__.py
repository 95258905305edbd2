"""The experiments: which fabric, which traffic, what is measured."""

#: Files that hold several scenarios, each of which is an attribute of the file.
SEVERAL = {
    "collective_benchmarks": (
        *("allgather", "allreduce", "alltoall", "alltoallv", "barrier", "broadcast"),
        *("gather", "reduce", "reducescatter", "scatter", "sendrecv"),
    ),
}
