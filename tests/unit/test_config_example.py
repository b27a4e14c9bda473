"""`config.example.toml` is held to the code: every key, with its default, once."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from sweeperd.config import EndpointSettings, Settings, load

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"
#: A key, or a table's name; `#` without a blank is an example that is turned off.
KEY = re.compile(r"#?(\w+) = ")
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
        elif field.annotation == list[EndpointSettings]:
            yield from keys_in_the_code(EndpointSettings, f"{stem}{name}.")
        else:
            yield stem + name


def test_every_key_is_there_once() -> None:
    assert Counter(key for key, _ in keys_in_the_file()) == Counter(keys_in_the_code(Settings))


def test_every_value_is_the_default() -> None:
    assert load(EXAMPLE, {}) == Settings()
    off = {key for key, number in keys_in_the_file() if lines()[number].startswith("#")}
    assert off == set(keys_in_the_code(EndpointSettings, "webhooks.endpoints.")), "all else is turned on"


def test_every_key_says_when_to_change_it() -> None:
    for key, number in keys_in_the_file():
        assert re.match(r"# .*\.$", lines()[number - 1]), f"the line above {key} is no comment"


def test_the_example_of_an_endpoint_loads(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(re.sub(r"^#(?! |$)", "", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")
    settings = load(path, {"BILLING_WEBHOOK_SECRET": "whsec_c2VjcmV0"})
    (endpoint,) = settings.webhooks.endpoints
    assert endpoint.model_fields_set == set(EndpointSettings.model_fields)
    assert endpoint.secrets[0].get_secret_value() == b"secret"
    rest = settings.model_copy(update={"webhooks": settings.webhooks.model_copy(update={"endpoints": []})})
    assert rest == Settings()
