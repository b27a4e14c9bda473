"""The pages that are made from the code are as the code is, and every setting and metric is documented."""

import re
from pathlib import Path

import pytest

from sweeperd.config import Settings
from tests.docs import generate
from tests.support.documents import ROOT, documents, name
from tests.unit.config.test_example import keys_in_the_code

#: What the name of a key begins with.
KEY_NAME = re.compile(r'b"([a-z][a-z:_-]+)')
METRIC = re.compile(r"\bsweeperd_[a-z_]+[a-z]\b")


@pytest.mark.parametrize("page", generate.made(), ids=name)
def test_the_page_is_as_the_code_is(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == generate.pages()[page], "run python -m tests.docs.generate"


def test_each_page_that_is_made_is_compared() -> None:
    assert generate.made() == list(generate.pages())


def test_every_setting_is_documented() -> None:
    documented = {key.replace("[]", "") for key, _ in generate.settings()}
    assert set(keys_in_the_code(Settings)) <= documented


def test_every_setting_has_a_text_of_its_own() -> None:
    without = [key for key, text in generate.settings() if not text.endswith(".")]
    assert not without


def test_metrics_that_documents_name_exist() -> None:
    known = {metric for metric, *_ in generate.metrics()}
    ends = ("", "_bucket", "_sum", "_count")
    named = {word for document in documents() for word in METRIC.findall(document.read_text(encoding="utf-8"))}
    assert named <= {metric + end for metric in known for end in ends}


def test_every_key_in_redis_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "data-model.md").read_text(encoding="utf-8")
    names = KEY_NAME.findall((ROOT / "sweeperd" / "store" / "keys.py").read_text(encoding="utf-8"))
    assert len(names) > 10
    assert not [name for name in names if name not in text]


def test_every_target_of_the_makefile_is_documented() -> None:
    targets = re.findall(r"(?m)^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"))
    documented = re.findall(r"(?m)^\| `make (\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(documented) == 8
    assert sorted(targets) == sorted(documented)
