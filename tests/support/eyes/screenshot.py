"""`python -m tests.support.eyes.screenshot docs/images/page.png` (`--dark`, `--width 390`): the page in a busy hour."""

import argparse
import io
from pathlib import Path

from PIL import Image

from tests.support.eyes.browser import Browser
from tests.support.eyes.staged import busy, served, settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--open", action="store_true", help="with the details of an endpoint and of a quarantine")
    options = parser.parse_args()
    with served(settings("billing", "crm", "warehouse"), busy) as url, Browser() as browser:
        page = browser.open(url, width=options.width, dark=options.dark)
        page.shows("live")
        if options.open:
            page.run(
                "document.querySelectorAll('.toggle')[1].click(), document.querySelector('.reason').open = true, 0"
            )
        height = page.run("Math.ceil(document.documentElement.getBoundingClientRect().height)")
        page.look(options.width, height, dark=options.dark)
        shot = Image.open(io.BytesIO(page.picture())).convert("RGB")
        # A palette: a quarter of the size, and no difference that is seen.
        shot.quantize(256, dither=Image.Dither.NONE).save(options.file, optimize=True)
        assert not page.problems, page.problems


if __name__ == "__main__":
    main()
