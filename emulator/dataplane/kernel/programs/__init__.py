"""Programs for the kernel: classic and extended BPF, their system call, and the compiler of C."""
