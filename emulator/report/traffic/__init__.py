"""The traffic of an AI workload, counted: messages, flows, packets, entropy, bursts, utilisation.

:mod:`~emulator.report.traffic.messages` counts what GPUs post, from a run's timeline or from
schedules; :mod:`~emulator.report.traffic.frames` what captured links carry;
:mod:`~emulator.report.traffic.tables` makes tables of both and of what ports counted.
"""
