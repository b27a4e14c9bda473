"""Tests the values of the settings and each error in them."""

from datetime import timedelta
from pathlib import Path

import pytest

from sweeperd.errors import ConfigError
from tests.support.fixtures import Load
from tests.unit.config.shared import ASTRAY, BLANK_URL, DURATION, ENDPOINT, NO_HTTP_URL, NO_REDIS_URL, problems


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("5s", timedelta(seconds=5)),
        ("10m", timedelta(minutes=10)),
        ("72h", timedelta(hours=72)),
        ("30d", timedelta(days=30)),
    ],
)
def test_units(text: str, duration: timedelta, config: Load) -> None:
    assert config(f'[events]\nretention = "{text}"').events.retention == duration


def test_an_endpoint(config: Load) -> None:
    settings = config(ENDPOINT + 'tenants = ["acme", "globex"]\nsecrets = ["s3"]\nheaders = {"X-Team" = "ops"}')
    (endpoint,) = settings.webhooks.endpoints
    assert (endpoint.name, endpoint.tenants) == ("billing", ["acme", "globex"])
    assert endpoint.url.get_secret_value() == "https://billing.example.com/hook"
    assert [secret.get_secret_value() for secret in endpoint.secrets] == ["s3"]
    assert {name: value.get_secret_value() for name, value in endpoint.headers.items()} == {"X-Team": "ops"}


def test_an_endpoint_with_name_and_url_alone(config: Load) -> None:
    (endpoint,) = config(ENDPOINT).webhooks.endpoints
    assert (endpoint.secrets, endpoint.tenants, endpoint.headers) == ([], None, {})


def test_reconcile_can_be_turned_off(config: Load) -> None:
    assert config('[reconcile]\ninterval = ""').reconcile.interval is None


@pytest.mark.parametrize(
    ("listen", "address"), [("", None), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:9464", ("::1", 9464)), (":0", ("", 0))]
)
def test_listen(listen: str, address: tuple[str, int] | None, config: Load) -> None:
    assert config(f'[http]\nlisten = "{listen}"').http.address == address


@pytest.mark.parametrize(
    ("toml", "key", "problem"),
    [
        ("colour = 1", "colour", "unknown key"),
        ("[sweeep]\ninterval = '5s'", "sweeep", "unknown key; did you mean sweep?"),
        ("[sweep]\nbatchsize = 5", "sweep.batchsize", "unknown key; did you mean batch_size?"),
        ("batch_size = 5", "batch_size", "unknown key; did you mean sweep.batch_size?"),
        ("[webhooks]\nbatchsize = 5", "webhooks.batchsize", "unknown key; did you mean webhooks.endpoints.batch_size?"),
        ("[log]\nshutdown_grace = '5s'", "log.shutdown_grace", "unknown key; did you mean shutdown_grace?"),
        ("[[endpoints]]\nname = 'hook'", "endpoints", "unknown key; did you mean webhooks.endpoints?"),
        ("[swep]\ninterval = '5s'", "swep", "unknown key; did you mean sweep?"),
        ("[redis]\nulr = 'redis://a'", "redis.ulr", "unknown key; did you mean url?"),
        ("[events]\nretentoin = '1d'", "events.retentoin", "unknown key; did you mean retention?"),
        *(
            (f"[[webhooks.endpoints]]\nname = 'hook'\nurl = '{url}'", "webhooks.endpoints[0].url", problem)
            for url, problem in [
                ("https://user:/sesame@one/hook", ASTRAY),
                ("https://user:7/sesame@one/hook", ASTRAY),
                ("https://user:7#sesame@one/hook", ASTRAY),
                ("https://user:?sesame@one/hook", ASTRAY),
                ("https:///hook", NO_HTTP_URL),
            ]
        ),
        (ENDPOINT + "'https://hush@h' = 'x'", "webhooks.endpoints[0].…", "unknown key"),
        (ENDPOINT + "headers = {'X-Key: hush' = 5}", "webhooks.endpoints[0].headers.…", "must be text"),
        (ENDPOINT + "secret = 'x'", "webhooks.endpoints[0].secret", "unknown key; did you mean secrets?"),
        *(
            (f"[sweep]\nbatch_size = {value}", "sweep.batch_size", "must be a whole number")
            for value in ("'1000'", "true", "10.5")
        ),
        *(
            (f"[{section}]\n{key} = {value}", f"{section}.{key}", "must be at least")
            for section, key, value in (
                ("sweep", "batch_size", "0"),
                ("sweep", "batch_size", "-1"),
                ("sweep", "pipeline_depth", "0"),
                ("sweep", "pipeline_depth_min", "0"),
                ("sweep", "audit_spread", "-0.1"),
                ("cycles", "event_ttl", "'999ms'"),
                ("cycles", "delivery_ttl", "'0s'"),
                ("reconcile", "rate", "0"),
                ("webhooks", "concurrency", "0"),
                ("webhooks", "attempts", "0"),
            )
        ),
        ("[sweep]\npipeline_depth_min = 51", "sweep", "pipeline_depth_min"),
        ("[sweep]\nbatch_time = '0ms'", "sweep.batch_time", "longer than 0"),
        *(
            (f"[sweep]\ninterval = {value}", "sweep.interval", DURATION)
            for value in ("5", "'5'", "'5 s'", "'5w'", "'0.5s'", "''", "'-5s'")
        ),
        ("[sweep]\ninterval = '0s'", "sweep.interval", "must be longer than 0"),
        ("[sweep]\naudit_spread = 1.1", "sweep.audit_spread", "must be at most 1"),
        ("[sweep]\naudit_spread = nan", "sweep.audit_spread", "must be a number"),
        ("[sweep]\naudit_retention = '9999999999d'", "sweep.audit_retention", DURATION),
        ("[sweep]\naudit_retention = '36501d'", "sweep.audit_retention", 'at most "36500d"'),
        ("[events]\nretention = '999999999d'", "events.retention", 'at most "36500d"'),
        ("[cycles]\nevent_ttl = '36501d'", "cycles.event_ttl", 'at most "36500d"'),
        ("[redis]\nsocket_timeout = '366d'", "redis.socket_timeout", 'at most "365d"'),
        ("[sweep]\ninterval = '366d'", "sweep.interval", 'at most "365d"'),
        ("[sweep]\nprecision = '366d'", "sweep.precision", 'at most "365d"'),
        ("[reconcile]\ninterval = '366d'", "reconcile.interval", 'at most "365d"'),
        ("[webhooks]\nredelivery_max = '999999999h'", "webhooks.redelivery_max", 'at most "365d"'),
        ("shutdown_grace = '366d'", "shutdown_grace", 'at most "365d"'),
        (ENDPOINT + "start = '36501d'", "webhooks.endpoints[0].start", "or a duration"),
        ("[sweep]\nlease_ttl = 15", "sweep.lease_ttl", DURATION),
        *((f"[sweep]\nlease_ttl = '{value}'", "sweep.lease_ttl", '"10m"') for value in ("0s", "999ms", "11m")),
        ("sweep = 5", "sweep", "must be a table"),
        ("[keys]\nprefix = 5", "keys.prefix", "must be text"),
        ("[metrics]\ntenant_label = 'yes'", "metrics.tenant_label", "must be true or false"),
        ("[metrics]\ntenant_label = 1", "metrics.tenant_label", "must be true or false"),
        ("[log]\nlevel = 'loud'", "log.level", 'must be "debug", "info", "warning" or "error"'),
        ("[log]\nformat = 'xml'", "log.format", 'must be "auto", "text" or "json"'),
        ("[reconcile]\ninterval = '0s'", "reconcile.interval", "longer than 0"),
        ("[reconcile]\ninterval = 'daily'", "reconcile.interval", "a duration"),
        ("[http]\nlisten = '9464'", "http.listen", 'must be "host:port"'),
        ("[http]\nlisten = 'localhost:http'", "http.listen", '"host:port"'),
        ("[events]\ngroups = ['_replay.x']", "events.groups[0]", "must be "),
        ("[http]\nhosts = ['sweeperd:9464']", "http.hosts[0]", "must be "),
        ("[http]\nlisten = 'localhost:65536'", "http.listen", "65535"),
        *(
            (f"[redis]\nurl = '{url}'", "redis.url", NO_REDIS_URL)
            for url in (
                *("", "http://127.0.0.1", "127.0.0.1:6379", "redis://127.0.0.1:six/0"),
                *("redis://127.0.0.1/0?socket_timeout=long", "redis://127.0.0.1/0?colour=1"),
            )
        ),
        ("[redis]\nurl = 'redis://127.0.0.1:66000/0'", "redis.url", "65535"),
        ("[redis]\nurl = 5", "redis.url", "must be text"),
        ("[webhooks]\nbackoff_initial = '5s'\nbackoff_max = '4s'", "webhooks", "backoff_max is shorter than"),
        ("[webhooks]\nredelivery_initial = '2h'", "webhooks", "redelivery_max is shorter than redelivery_initial"),
        (ENDPOINT + "order_key = 'tenant'", "webhooks.endpoints[0]", 'order_key needs order = "key"'),
        (ENDPOINT + "redelivery_max = '29s'", "webhooks", "redelivery_max of the endpoint billing is shorter"),
        ("[webhooks]\nendpoints = 'billing'", "webhooks.endpoints", "must be a list"),
        (ENDPOINT + ENDPOINT, "webhooks", "two endpoints are named billing"),
        (ENDPOINT + "balances = true", "", "the endpoint billing has balances = true, which needs events.balances"),
        (ENDPOINT.replace('"billing"', '"bill ing"'), "webhooks.endpoints[0].name", "must be "),
        (ENDPOINT.replace('"billing"', '""'), "webhooks.endpoints[0].name", "must be "),
        (ENDPOINT.replace("name", "nom"), "webhooks.endpoints[0].name", "is missing"),
        (ENDPOINT.replace("https:", "ftp:"), "webhooks.endpoints[0].url", NO_HTTP_URL),
        *(
            (ENDPOINT.replace(before, after), "webhooks.endpoints[0].url", BLANK_URL)
            for before, after in [
                ("https:", " https:"),
                (".com", ".com/a b"),
                (".com", ".com/\\t"),
                (".com", ".com\xa0"),
            ]
        ),
        (ENDPOINT.replace("https://billing.example.com", ""), "webhooks.endpoints[0].url", NO_HTTP_URL),
        (ENDPOINT.replace("billing.example.com", ""), "webhooks.endpoints[0].url", NO_HTTP_URL),
        (ENDPOINT.replace("example.com", "example.com:0"), "webhooks.endpoints[0].url", "from 1 to 65535"),
        (ENDPOINT.replace("example.com", "example.com:99999"), "webhooks.endpoints[0].url", "from 1 to 65535"),
        (ENDPOINT.replace("example.com", "example.com:x"), "webhooks.endpoints[0].url", NO_HTTP_URL),
        *(
            (ENDPOINT + f"{key} = []", f"webhooks.endpoints[0].{key}", "empty list")
            for key in ("events", "scopes", "tenants")
        ),
        (ENDPOINT + "events = ['Reservation Expired']", "webhooks.endpoints[0].events[0]", "must be "),
        (ENDPOINT + "scopes = ['tenant:*/x']", "webhooks.endpoints[0].scopes[0]", "must be "),
        (ENDPOINT + "tenants = 'acme'", "webhooks.endpoints[0].tenants", "must be a list"),
        (ENDPOINT + "secrets = 'x'", "webhooks.endpoints[0].secrets", "must be a list"),
        (ENDPOINT + "secrets = ['a', 5]", "webhooks.endpoints[0].secrets[1]", "a secret is text"),
        (ENDPOINT + "secrets = ['exec:vault kv get hook']", "webhooks.endpoints[0].secrets[0]", "exec: is only for"),
        (ENDPOINT + "headers = {'X Y' = ''}", "webhooks.endpoints[0].headers", "' ' is not allowed"),
        (ENDPOINT + "headers = {'' = 'x'}", "webhooks.endpoints[0].headers", "a header without a name"),
        (ENDPOINT + 'headers = {"X-Y" = "a\\nb"}', "webhooks.endpoints[0].headers", "X-Y is not allowed"),
        *(
            (ENDPOINT + f'headers = {{"X-Y" = "{value}"}}', "webhooks.endpoints[0].headers", "X-Y begins or ends with")
            for value in (" a", "a ", "\\ta", "a\\t", " ")
        ),
        *(
            (ENDPOINT.replace("billing.example", host), "webhooks.endpoints[0].url", "valid name")
            for host in ("a" * 64, "a..b", "é" * 60, ".".join(["a" * 63] * 4))
        ),
        (ENDPOINT + f"proxy = 'http://{'a' * 64}:3128'", "webhooks.endpoints[0].proxy", "valid name"),
        (f"[http]\nlisten = '{'a' * 64}:9464'", "http.listen", "valid name"),
    ],
)
def test_an_error_names_file_key_and_what_is_wrong(
    toml: str, key: str, problem: str, config: Load, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        config(toml)
    prefix = "".join(f"{part}: " for part in (tmp_path / "config.toml", key) if part)
    assert [line for line in problems(error) if line.startswith(prefix) and problem in line], str(error.value)


@pytest.mark.parametrize(
    "key", ["http.port", "redis.host", "redis.db", "events.foo", "sweep.keys", "sweep.redis", "metrics.ttl", "colour"]
)
def test_an_unknown_key_that_is_like_no_other_gets_no_proposal(key: str, config: Load, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        config(f"{key} = 1")
    assert problems(error) == [f"{tmp_path / 'config.toml'}: {key}: unknown key"]


def test_an_endpoint_s_own_limits_replace_the_common_ones(config: Load) -> None:
    own = 'timeout = "30s"\nattempts = 5\nredelivery_max = "2h"\nmax_age = "90h"'
    webhooks = config(ENDPOINT.replace("billing", "audit") + ENDPOINT + own).webhooks
    audit, billing = (webhooks.of(endpoint) for endpoint in webhooks.endpoints)
    assert audit == webhooks
    assert (billing.timeout, billing.attempts) == (timedelta(seconds=30), 5)
    assert (billing.redelivery_max, billing.max_age) == (timedelta(hours=2), timedelta(hours=90))
    assert billing.max_age == webhooks.longest_age


@pytest.mark.parametrize(
    "name",
    [
        "webhook-id", "Webhook-Signature", "X-Cycles-Signature", "Traceparent", "user-agent", "content-type", "Host",
        "X-Sweeperd-Sequence", "x-sweeperd-anything", "Transfer-Encoding", "Connection", "TE", "Trailer", "Upgrade",
        "Expect", "keep-alive", "Proxy-Connection", "HTTP2-Settings",
    ],
)  # fmt: skip
def test_headers_of_sweeperd_and_of_the_connection_are_refused(name: str, config: Load) -> None:
    with pytest.raises(ConfigError, match=rf"webhooks\.endpoints\[0\]\.headers: {name} "):
        config(ENDPOINT + f'headers = {{"{name}" = "x"}}')


@pytest.mark.parametrize("host", ["a" * 63, "ex_ample", "bücher.example", "example.com.", "[::1]", "127.0.0.1"])
def test_hosts_that_can_be_looked_up(host: str, config: Load) -> None:
    toml = f"[redis]\nurl = 'redis://{host}:6379'\n[http]\nlisten = '{host}:9464'\n"
    settings = config(toml + ENDPOINT.replace("billing.example.com", host))
    assert host in settings.webhooks.endpoints[0].url.get_secret_value()


def test_every_problem_has_its_line(config: Load, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        config("colour = 1\n[sweep]\nbatch_size = 0\ninterval = 5")
    starts = {line.removeprefix(f"{tmp_path / 'config.toml'}: ").partition(":")[0] for line in problems(error)}
    assert starts == {"colour", "sweep.batch_size", "sweep.interval"}
    assert len(problems(error)) == 3


def test_groups_of_other_programs_have_names_of_their_own(config: Load) -> None:
    with pytest.raises(ConfigError, match=r"events\.groups names a group twice"):
        config("[events]\ngroups = ['a', 'a']")
    with pytest.raises(ConfigError, match=r"events\.groups: billing is an endpoint"):
        config("[events]\ngroups = ['billing']\n" + ENDPOINT)


@pytest.mark.parametrize(
    ("lines", "doubt"),
    [
        (
            'events = ["reservation.expird"]',
            "no event is a reservation.expird, which the endpoint billing asks for; did",
        ),
        ('events = ["carts"]', "did you mean cart?"),
        ('events = ["carts.expired"]', "did you mean cart.expired?"),
        (
            'tenants = ["acme"]\nevents = ["reservation", "webhook.failing"]',
            "the endpoint billing never gets a webhook.failing: it has no tenant, and the endpoint selects tenants",
        ),
        ('tenants = ["acme"]\nevents = ["cart.expired"]', "never gets a cart.expired: it has no tenant"),
        ('scopes = ["tenant:*"]\nevents = ["cart"]', "never gets a cart: it has no scope"),
        ('scopes = ["*"]\nevents = ["reservation.expiry_rate_spike"]', "it has no scope"),
        ('tenants = ["__system__"]\nevents = ["webhook.failing", "reservation.expiry_rate_spike"]', ""),
        ('tenants = ["acme"]\nevents = ["reservation", "reservation.expiry_rate_spike"]', ""),
        ('scopes = ["tenant:*"]\nevents = ["reservation", "budget.threshold_crossed"]', ""),
        ('secrets = ["billing.secret"]', "a secret of the endpoint billing has fewer than 16 characters"),
        ('events = ["reservation", "cart", "cart.expired", "budget.threshold_crossed", "webhook.failing"]', ""),
        ('secrets = ["a phrase that nobody guesses", "env:LONG"]', ""),
    ],
)
def test_what_is_allowed_and_probably_a_mistake(lines: str, doubt: str, config: Load) -> None:
    kind = (
        '[[kinds]]\nname = "cart"\nindex = "carts:ttl"\nkey = "carts:{id}"\ndeadline = "expires_at"\nretention = "0s"\n'
    )
    doubts = config(f"{ENDPOINT}{lines}\n{kind}", {"LONG": "another long phrase"}).doubts
    assert len(doubts) == bool(doubt)
    assert doubt in "".join(doubts)
