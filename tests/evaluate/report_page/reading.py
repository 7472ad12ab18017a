"""Reads a page, and checks that every opened tag is closed."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

__all__ = ["Checked"]

_VOID = {"meta", "br", "img", "link", "input", "hr"}


class Checked(HTMLParser):
    """What is on a page.

    Attributes:
        open: the elements that are left open.
        sections: the titles by the sections' names.
        targets: what is linked to, in the page or outside.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.targets: set[str] = set()
        self.sections: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name.endswith("href"):
                self.targets.add((value or "").removeprefix("#"))
            self.targets.update(re.findall(r"url\(#(.*?)\)", value or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.sections[self.ids[-1]] = data
