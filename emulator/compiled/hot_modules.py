"""The modules that ``python -m emulator.compiled`` compiles."""

#: Where the processor time of a frame goes, or that of an operation of a schedule.  A compiled
#: class has no derived class in a module that is not compiled.
HOT = (
    "emulator/dataplane/kernel/frames/kernel_switch.py",
    "emulator/dataplane/kernel/frames/packet_ring.py",
    "emulator/sim/endpoint/operations/executor.py",
    "emulator/sim/event_queue.py",
    "emulator/sim/gpu_endpoint.py",
    "emulator/sim/gpu_port.py",
    "emulator/sim/line.py",
    "emulator/sim/outlets.py",
    "emulator/sim/scale_up_copies.py",
    "uet/arrivals.py",
    "uet/carrier_codec.py",
    "uet/congestion/context.py",
    "uet/congestion/spraying/reps.py",
    "uet/pds/destination.py",
    "uet/pds/feedback.py",
    "uet/pds/packets.py",
    "uet/pds/pdc.py",
    "uet/pds/repair.py",
    "uet/pds/rto.py",
    "uet/pds/scheduler.py",
    "uet/pds/source.py",
    "uet/pds/window.py",
    "uet/ses/initiator/outbound.py",
    "uet/ses/target/inbound.py",
    "uet/ses/target/target.py",
    "uet/timekeeper.py",
)
