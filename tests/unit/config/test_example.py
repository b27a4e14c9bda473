"""Holds `config.example.toml` to the code: each key once, with its default."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from sweeperd.config import EndpointSettings, Settings, ShardSettings, load
from sweeperd.config.kinds import KindSettings
from sweeperd.errors import ConfigError
from tests.support.authority import Authority

EXAMPLE = Path(__file__).parents[3] / "config.example.toml"
#: A key, or a table's name; `#` without a blank is an example that is turned off.
KEY = re.compile(r"#?(\w+) = ")
#: What the items of lists are.
LISTS: dict[object, type[BaseModel]] = {
    list[EndpointSettings]: EndpointSettings,
    list[ShardSettings]: ShardSettings,
    list[KindSettings]: KindSettings,
}
#: The keys of another form of kind, which the example cannot have.
OTHER_FORMS = ("script", "commands", "fields", "reads", "member", "each")
TABLE = re.compile(r"#?\[+([\w.]+)\]+")


def lines() -> list[str]:
    return EXAMPLE.read_text(encoding="utf-8").splitlines()


def keys_in_the_file() -> Iterator[tuple[str, int]]:
    """Every key, turned off or not, with the number of its line."""
    table = ""
    for number, line in enumerate(lines()):
        if found := TABLE.fullmatch(line):
            table = found[1] + "."
        elif found := KEY.match(line):
            yield table + found[1], number


def keys_in_the_code(model: type[BaseModel], stem: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys_in_the_code(field.annotation, f"{stem}{name}.")
        elif items := LISTS.get(field.annotation):
            yield from keys_in_the_code(items, f"{stem}{name}.")
        else:
            yield stem + name


def test_every_key_is_there_once() -> None:
    assert Counter(key for key, _ in keys_in_the_file()) == Counter(keys_in_the_code(Settings))


def test_every_value_is_the_default() -> None:
    assert load(EXAMPLE, {}) == Settings()
    off = {key for key, number in keys_in_the_file() if lines()[number].startswith("#")}
    examples = {
        *keys_in_the_code(EndpointSettings, "webhooks.endpoints."),
        *keys_in_the_code(ShardSettings, "shards."),
        *keys_in_the_code(KindSettings, "kinds."),
    }
    assert off == examples, "all else is turned on"


def test_every_key_says_when_to_change_it() -> None:
    for key, number in keys_in_the_file():
        assert re.match(r"# .*\.$", lines()[number - 1]), f"the line above {key} is no comment"


def turned_on(table: str) -> str:
    """The file with the example of this table turned on."""
    on = False
    text = []
    for line in lines():
        if found := TABLE.fullmatch(line):
            on = found[1] == table
        text.append(re.sub(r"^#(?! |$)", "", line) if on else line)
    return "\n".join(text)


def test_the_example_of_an_endpoint_loads(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(turned_on("webhooks.endpoints"), encoding="utf-8")
    authority = Authority(tmp_path)
    authority.ca("billing-ca.pem")
    authority.client("billing-client.pem", "billing-client-key.pem")
    settings = load(path, {"BILLING_WEBHOOK_SECRET": "whsec_c2VjcmV0"})
    (endpoint,) = settings.webhooks.endpoints
    assert endpoint.model_fields_set == set(EndpointSettings.model_fields)
    assert endpoint.secrets[0].get_secret_value() == "whsec_c2VjcmV0"
    assert [path.name for path in settings.watched] == [
        "billing-ca.pem",
        "billing-client-key.pem",
        "billing-client.pem",
    ]
    rest = settings.model_copy(update={"webhooks": settings.webhooks.model_copy(update={"endpoints": []})})
    rest.watch((), ())
    assert rest == Settings()


def test_the_example_of_a_shard_loads_without_the_keys_that_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(turned_on("shards"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"redis\.url and keys\.prefix and \[\[shards\]\]"):
        load(path, {})
    path.write_text(re.sub(r'(?m)^(url|prefix) = ("redis://127.*|"")$', "", turned_on("shards")), encoding="utf-8")
    settings = load(path, {})
    (shard,) = settings.shards
    assert shard.model_fields_set == set(ShardSettings.model_fields)
    assert settings.model_copy(update={"shards": []}) == Settings()


def test_the_example_of_a_kind_loads(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(re.sub(rf"(?m)^({'|'.join(OTHER_FORMS)}) = .*$", "", turned_on("kinds")), encoding="utf-8")
    (kind,) = load(path, {}).kinds
    assert kind.model_fields_set == set(KindSettings.model_fields) - {*OTHER_FORMS}


def test_the_example_of_a_script_kind_loads(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    (tmp_path / "seat_hold.lua").write_text("function decide() end", encoding="utf-8")
    path.write_text(
        re.sub(r"(?m)^(active|give_back|event|member|each) = .*$", "", turned_on("kinds")), encoding="utf-8"
    )
    (kind,) = load(path, {}).kinds
    assert kind.script == "function decide() end"
