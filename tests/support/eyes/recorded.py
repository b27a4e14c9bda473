"""`python -m tests.support.eyes.recorded docs/images/demo.svg sweeperd demo`: a terminal, as a moving SVG."""

import argparse
import html
import os
import pty
import re
import subprocess
import time
from pathlib import Path

COLUMNS, ROWS, LINE, ADVANCE, MARGIN = 100, 24, 18, 8.4, 16
#: Foreground colours by their SGR code.
COLOURS = {30: "#6e7681", 31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea"}
_SGR = re.compile(r"\x1b\[([\d;]*)m")


def recorded(command: list[str]) -> list[tuple[float, str]]:
    """Each line that the command prints, and after how many seconds."""
    leader, follower = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    began, lines, rest = time.monotonic(), list[tuple[float, str]](), b""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, env=env) as process:
        os.close(follower)
        while True:
            try:
                rest += os.read(leader, 65536)
            except OSError:  # the command has ended
                break
            *whole, rest = rest.split(b"\n")
            lines += [(time.monotonic() - began, line.decode().rstrip("\r")) for line in whole]
    assert process.returncode == 0, lines
    return lines


def spans(line: str) -> str:
    """The line with its colours as tspans."""
    written, style = "", ""
    for number, part in enumerate(_SGR.split(line)):
        if number % 2 == 0:
            written += f"<tspan{style}>{html.escape(part, quote=False)}</tspan>" if part else ""
            continue
        codes = [int(code or 0) for code in part.split(";")]
        for code in codes:
            if code == 0:
                style = ""
            elif code == 1:
                style += ' font-weight="bold"'
            elif colour := COLOURS.get(code - 60 if code >= 90 else code):
                style += f' fill="{colour}"'
    return written


def drawn(lines: list[tuple[float, str]]) -> str:
    """Without animation the picture is the last screen. With it, each line comes when it was printed."""
    whole = lines[-1][0] + 1
    width, height = int(COLUMNS * ADVANCE + 2 * MARGIN), ROWS * LINE + 2 * MARGIN
    moves = [(0.0, 0)]
    texts = []
    for number, (at, line) in enumerate(lines):
        if number >= ROWS:
            moves.append((at / whole, (number + 1 - ROWS) * LINE))
        appear = (
            f'<animate attributeName="opacity" values="0;1" keyTimes="0;{at / whole:.4f}" calcMode="discrete" '
            f'dur="{whole:.1f}s" fill="freeze"/>'
        )
        text = f'<text x="{MARGIN}" y="{MARGIN + LINE * number + 13}">{spans(line)}{appear}</text>'
        texts.append(text if _SGR.sub("", line).strip() else "")
    scroll = (
        '<animateTransform attributeName="transform" type="translate" calcMode="discrete" fill="freeze" '
        f'dur="{whole:.1f}s" values="{";".join(f"0 {-y}" for _, y in moves)}" '
        f'keyTimes="{";".join(f"{at:.4f}" for at, _ in moves)}"/>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        '<style>text{white-space:pre}</style><rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n'
        f'<clipPath id="screen"><rect x="0" y="{MARGIN}" '
        f'width="{width}" height="{ROWS * LINE}"/></clipPath>\n<g clip-path="url(#screen)">'
        f'<g transform="translate(0 {-moves[-1][1]})" fill="#c9d1d9" font-size="14" '
        f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace">{scroll}\n'
        + "\n".join(filter(None, texts))
        + "\n</g></g></svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.file.write_text(drawn(recorded(options.command)), encoding="utf-8")


if __name__ == "__main__":
    main()
