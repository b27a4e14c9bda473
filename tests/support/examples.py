"""The kinds of the examples, and their own writers."""

import importlib.util
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Folder -> kind.
KINDS = {"seat-holds": "seat-hold", "locks": "lock", "permits": "permit", "sessions": "session"}
#: The examples of other forms.
FORMS = {"carts": "cart", "spring-sessions": "spring-session", "semaphore": "semaphore"}


def writer_of(example: str) -> ModuleType:
    """The example's writer.py."""
    spec = importlib.util.spec_from_file_location(f"writer_{example}", EXAMPLES / example / "writer.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
