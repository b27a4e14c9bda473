"""The signatures, verified by implementations that are not sweeperd's: standardwebhooks, and hmac as Cycles uses it."""

import base64
import hashlib
import hmac
import json
import re
import secrets
import subprocess
import sys
import time

import nacl.encoding
import nacl.exceptions
import nacl.signing
import pytest
import standardwebhooks

from sweeperd.config import EndpointSettings
from sweeperd.delivery import webhook as ed25519
from sweeperd.delivery.webhook import Signer
from sweeperd.webhook_keys import generate_pair

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


@pytest.mark.parametrize("secret", ["plain text, schlüssel", "whisper_abc", "x"])
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


# ---- asymmetric

SEED_KEY = nacl.signing.SigningKey(bytes(range(32)))
PUBLIC = "whpk_" + base64.b64encode(bytes(SEED_KEY.verify_key)).decode()
PAIR = base64.b64encode(bytes(SEED_KEY) + bytes(SEED_KEY.verify_key)).decode()
PRIVATE = [f"whsk_{PAIR}", f"whsk_{PAIR.rstrip('=')}", f"whsk_{base64.urlsafe_b64encode(bytes(SEED_KEY)).decode()}"]


def verify(public: str, signature: str, headers: dict[str, str]) -> None:
    """With libsodium. Raises nacl.exceptions.BadSignatureError."""
    version, _, text = signature.partition(",")
    assert version == "v1a"
    key = nacl.signing.VerifyKey(public.removeprefix("whpk_").encode(), nacl.encoding.Base64Encoder)
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + BODY
    key.verify(content, base64.b64decode(text))


@pytest.mark.parametrize("secret", PRIVATE)
def test_an_asymmetric_signature(secret: str) -> None:
    headers = signed(secret)
    verify(PUBLIC, headers["webhook-signature"], headers)
    with pytest.raises(nacl.exceptions.BadSignatureError):
        verify(PUBLIC, headers["webhook-signature"], headers | {"webhook-id": "evt_2"})
    assert "X-Cycles-Signature" not in headers


def test_a_generated_pair_signs_and_verifies() -> None:
    for _ in range(20):
        private, public = generate_pair()
        headers = signed(private)
        verify(public, headers["webhook-signature"], headers)


def test_both_kinds_of_key_rotate_together() -> None:
    private, public = generate_pair()
    headers = signed(private, FORMS[0], PRIVATE[0], "text")
    first, _, third, _ = headers["webhook-signature"].split()
    verify(public, first, headers)
    verify(PUBLIC, third, headers)
    for key in (KEY, b"text"):
        assert standardwebhooks.Webhook(key).verify(BODY, headers)
    assert verifies_for_cycles(FORMS[0], headers), "the first secret that is shared"


def test_the_key_set_holds_public_keys_only() -> None:
    private, public = generate_pair()
    document = ed25519.jwks([private, PRIVATE[0], private])
    one, two = document["keys"]
    assert one.keys() == two.keys() == {"kty", "crv", "x", "kid", "alg", "use"}
    assert (one["kty"], one["crv"], one["alg"], one["use"]) == ("OKP", "Ed25519", "EdDSA", "sig")
    assert base64.urlsafe_b64decode(one["x"] + "=") == base64.b64decode(public.removeprefix("whpk_"))
    assert one["kid"] != two["kid"]
    assert private[5:40] not in json.dumps(document)


def test_the_name_of_a_key_is_its_thumbprint() -> None:
    """The example of RFC 8037, appendices A.1 to A.3."""
    seed = base64.urlsafe_b64decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
    key = ed25519.jwk("whsk_" + base64.b64encode(seed).decode())
    assert key["x"] == "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
    assert key["kid"] == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_webhooks_without_a_private_key_need_no_extra() -> None:
    """The cryptography package is an extra: a daemon is installed without the package."""
    code = "import sys; sys.modules['cryptography'] = None; import sweeperd.delivery.webhook, sweeperd.runtime.service"
    subprocess.run([sys.executable, "-c", code], check=True)
