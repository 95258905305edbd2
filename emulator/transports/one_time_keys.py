"""Keys that serve one life of a run's endpoints, and are never sent with again.

Every packet counter under them begins at zero, so two lives with one key would give its key
stream away (RFC 5116 section 3.1): whatever changes a packet must change the key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from uet.tss.secure_domain import KEY_SIZE, Mode, SecureDomain

#: The keys of a run, in its folder beside the captures.
KEY_FILE = "tss_keys.json"
#: Ends the name of a capture's own key file, after the name of the capture.
KEY_SUFFIX = ".tss_keys.json"
_SDI = 1


@dataclass(frozen=True, slots=True)
class OneTimeKeys:
    """The secure domain of all GPUs of a run, without its key."""

    mode: Mode

    def domain(self, secret: bytes) -> dict[str, object]:
        """The domain as JSON data; its key follows from ``secret``."""
        key = hashlib.sha256(b"uetemu secure domain" + secret).digest()[:KEY_SIZE]
        return SecureDomain(sdi=_SDI, mode=self.mode, keys={0: key}).as_data()

    def config(self, secret: bytes) -> dict[str, object]:
        """Fields of an endpoint: the domain, under which nothing was accepted yet."""
        return {"domains": [self.domain(secret)], "sdi": _SDI, "expected_psn": 0}
