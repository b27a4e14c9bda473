"""The signatures, verified by implementations that are not sweeperd's: standardwebhooks, and hmac as Cycles uses it."""

import base64
import hashlib
import hmac
import json
import re
import secrets
import time

import pytest
import standardwebhooks

from sweeperd.config import EndpointSettings
from sweeperd.delivery.signing import Signer

BODY = json.dumps({"event_id": "evt_1", "tenant_id": "täglich"}, ensure_ascii=False).encode()
#: Its base64 has characters of both alphabets, and padding.
KEY = bytes(range(200, 232))
STANDARD, URL_SAFE = base64.b64encode(KEY).decode(), base64.urlsafe_b64encode(KEY).decode()
FORMS = [f"whsec_{text}{end}" for text in (STANDARD.rstrip("="), URL_SAFE.rstrip("=")) for end in ("", "=")]


def signed(*texts: str) -> dict[str, str]:
    """The headers of a request that is signed with these secrets, which the settings have taken."""
    endpoint = EndpointSettings.model_validate({"name": "odd", "url": "http://x/", "secrets": list(texts)})
    signer = Signer([secret.get_secret_value() for secret in endpoint.secrets])
    now = int(time.time())
    return {"webhook-id": "evt_1", "webhook-timestamp": str(now)} | signer.headers("evt_1", now, BODY)


def verifies_for_cycles(secret: str, headers: dict[str, str]) -> bool:
    """As the dispatcher of Cycles signs, and its receivers verify: the key is the text."""
    expected = hmac.new(secret.encode("utf-8"), BODY, hashlib.sha256).hexdigest()
    return headers["X-Cycles-Signature"] == f"sha256={expected}"


def test_no_secret_no_signature() -> None:
    assert signed().keys() == {"webhook-id", "webhook-timestamp"}


@pytest.mark.parametrize("secret", FORMS)
def test_each_form_of_a_key(secret: str) -> None:
    headers = signed(secret)
    webhook = standardwebhooks.Webhook(KEY)
    assert webhook.verify(BODY, headers) == json.loads(BODY)
    assert verifies_for_cycles(secret, headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        webhook.verify(BODY + b" ", headers)


@pytest.mark.parametrize("secret", ["plain text, schlüssel", "WHSEC_abc", "x"])
def test_other_text_is_the_key_of_both(secret: str) -> None:
    headers = signed(secret)
    assert standardwebhooks.Webhook(secret.encode()).verify(BODY, headers) == json.loads(BODY)
    assert verifies_for_cycles(secret, headers)


def test_every_secret_that_cycles_generates() -> None:
    for _ in range(2000):
        key = secrets.token_bytes(32)
        secret = "whsec_" + base64.urlsafe_b64encode(key).decode().rstrip("=")
        headers = signed(secret)
        assert standardwebhooks.Webhook(key).verify(BODY, headers) == json.loads(BODY)
        assert verifies_for_cycles(secret, headers)


def test_rotation_signs_with_every_secret() -> None:
    headers = signed("old", FORMS[0])
    assert re.fullmatch(r"v1,\S+ v1,\S+", headers["webhook-signature"])
    for key in (b"old", KEY):
        assert standardwebhooks.Webhook(key).verify(BODY, headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(b"other").verify(BODY, headers)
    assert verifies_for_cycles("old", headers), "Cycles has one signature: the first secret's"
