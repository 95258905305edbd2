"""The experiments: which fabric, which traffic, what is measured."""

#: Files that hold several scenarios, each of which is an attribute of the file.
SEVERAL = {
    "collective_benchmarks": (
        *("allgather", "allreduce", "alltoall", "alltoallv", "barrier", "broadcast"),
        *("gather", "reduce", "reducescatter", "scatter", "sendrecv"),
    ),
    "neural_training": (
        *("neural_training", "fnn", "attention", "convolutional", "data_parallel"),
        *("model_parallel", "pipeline_parallel", "recurrent", "tensor_parallel", "three_d"),
    ),
}
