"""Columns that only the inference suite has, and deviations that many of its tests share."""

from __future__ import annotations

from emulator.suite.suite_model import Point, SuiteColumn


def _endpoint(key: str, heading: str, unit: str = "") -> SuiteColumn:
    return SuiteColumn(key, heading, unit, Point.ENDPOINT)


def setting(key: str, heading: str, unit: str = "") -> SuiteColumn:
    """Return a column of what a test sets."""
    return SuiteColumn(key, heading, unit, Point.INPUT)


PROMPT = setting("prompt", "prompt", "tokens")
PLACEMENT = setting("placement", "placement")
TRANSFER = setting("transfer", "transfer")
RATE = setting("rate", "rate", "requests/s")
EXPERTS = setting("members", "EP")
BATCH = setting("tokens", "batch", "tokens")
WAIT = _endpoint("wait_us", "wait", "us")
PREFILL = _endpoint("prefill_us", "T_prefill", "us")
TRANSFER_TIME = _endpoint("transfer_us", "T_transfer", "us")
DECODE_INIT = _endpoint("decode_init_us", "T_decode_init", "us")
TTFT = _endpoint("ttft_us", "TTFT mean", "us")
TTFT_P50 = _endpoint("ttft_p50_us", "TTFT P50", "us")
TTFT_P99 = _endpoint("ttft_p99_us", "TTFT P99", "us")
ITL_P50 = _endpoint("itl_p50_us", "ITL P50", "us")
ITL_P95 = _endpoint("itl_p95_us", "ITL P95", "us")
ITL_P99 = _endpoint("itl_p99_us", "ITL P99", "us")
ITL_P999 = _endpoint("itl_p999_us", "ITL P99.9", "us")
ITL_MOST = _endpoint("itl_max_us", "ITL most", "us")
ITL_SAMPLES = _endpoint("itl_samples", "ITL samples")
STALLS = _endpoint("itl_stalls", "stalls")
FABRIC_SHARE = _endpoint("ttft_fabric_share", "T_transfer / TTFT")
TOKENS = _endpoint("tokens_per_second", "TPS_output", "1/s")
PROMPT_TOKENS = _endpoint("prompt_tokens_per_second", "TPS_input", "1/s")
KV_RATE = _endpoint("transfer_gbps", "KV rate", "GB/s")
DISPATCH = _endpoint("dispatch_us", "dispatch", "us")
DISPATCH_BOUND = SuiteColumn("dispatch_bound_us", "T_dispatch bound", "us", Point.DERIVED)

#: A request's model, divided by this: the draft's sizes and computing times over 1024.
SCALE = 1024
SCALED = (
    f"Octets and computing times are those of Llama 70B (CFG-B: L = 80, H_kv = 8, D = 128, BF16)"
    f" over {SCALE}; latencies of cables and switches are not divided. Times stand as they ran."
)
FEW_REQUESTS = "{count} requests a run, {seeds} seeds, instead of 20 trials of 60 s."
FORMULA = (
    "Accelerators compute for as long as a formula says (FLOPs of prefill, octets of decode), so"
    " that only the fabric differs between rows."
)
