"""
`python -m tests.support.eyes.screenshot DIRECTORY` (`--dark`, `--open`): the page in each state, wide and on a phone.
"""

import argparse
import io
from pathlib import Path

from PIL import Image

from tests.support.eyes.browser import Browser, Page
from tests.support.eyes.staged import STATES, served, settings

#: The widths in pixels, and what they add to the name of the file.
WIDTHS = {1200: "", 390: "-phone"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--open", action="store_true", help="with the details of an endpoint and of a quarantine")
    parser.add_argument("--state", choices=STATES, action="append", help="only this state")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    with Browser() as browser:
        for state in options.state or STATES:
            names = () if state == "empty" else ("billing", "crm", "warehouse") if state == "busy" else ("billing",)
            with served(settings(*names), STATES[state]) as url:
                for width, suffix in WIDTHS.items():
                    page = browser.open(url, width=width, dark=options.dark)
                    page.shows("live")
                    if options.open:
                        page.run("document.querySelectorAll('.toggle').forEach((each) => each.click())")
                        page.run("document.querySelectorAll('.reason').forEach((each) => (each.open = true)), 0")
                    name = "page" if state == "busy" else f"page-{state}"
                    save(page, options.directory / f"{name}{suffix}.png", width, dark=options.dark)
                    assert not page.problems, page.problems
                    page.close()


def save(page: Page, file: Path, width: int, *, dark: bool) -> None:
    """All of the page, with a palette: a quarter of the size, and no difference that is seen."""
    height = page.run("Math.ceil(document.documentElement.getBoundingClientRect().height)")
    page.look(width, height, dark=dark)
    shot = Image.open(io.BytesIO(page.picture())).convert("RGB")
    shot.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main()
