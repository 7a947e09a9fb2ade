"""Damage that is larger than a bit: files lost, emptied, cut, doubled, exchanged and renamed, lines lost, doubled and exchanged.

Each is what a careless hand, a bad copy or a broken filesystem leaves.  Whatever it is, a start either refuses with a reason, or serves
nothing that was never written and hides nothing without a word.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from scheduler_daemon.store.tools import verify
from tests.crash.flips import Missing, Truth, build, judge
from tests.crash.simfs import Image, SimFileSystem
from tests.crash.stage import ROOT

EVERYTHING = "CRASH_EVERYTHING" in os.environ
SAMPLE = 10_000 if EVERYTHING else 10
"""How many cases of each sort in each folder; all of them where there are fewer."""

Case = tuple[str, Image]


@pytest.fixture(scope="module")
def truth() -> Truth:
    return build(12, 700)


def _files(image: Image) -> dict[str, bytes]:
    return {path: content for path, content in image.items() if content}


def _lost(image: Image) -> Iterator[Case]:
    for path in _files(image):
        yield f"{path} is lost", {key: content for key, content in image.items() if key != path}


def _emptied(image: Image) -> Iterator[Case]:
    for path in _files(image):
        yield f"{path} is empty", {**image, path: b""}


def _cut(image: Image) -> Iterator[Case]:
    """At a line's end, in a line, and by a single byte."""
    for path, content in _files(image).items():
        middle = content.find(b"\n", len(content) // 2) + 1
        for end in {middle, len(content) // 2, len(content) - 1, len(content) // 3} - {0, len(content)}:
            yield f"{path} is cut at {end}", {**image, path: content[:end]}


def _zeroed(image: Image) -> Iterator[Case]:
    for path, content in _files(image).items():
        start = len(content) // 2 // 512 * 512
        zeros = bytes(min(512, len(content) - start))
        yield f"{path} has zeros at {start}", {**image, path: content[:start] + zeros + content[start + len(zeros) :]}


def _grown(image: Image) -> Iterator[Case]:
    """Something of another file, or rubbish, at the end."""
    for path, content in _files(image).items():
        yield f"{path} has rubbish after it", {**image, path: content + b"\xff\x00rubbish\n"}
        yield f"{path} has blanks after it", {**image, path: content + b"\n\n"}


def _doubled(image: Image) -> Iterator[Case]:
    """The same content under another name of the same sort."""
    for path, content in _files(image).items():
        folder, _, name = path.rpartition("/")
        stem, dot, end = name.partition(".")
        if stem.isdecimal():
            for number in (int(stem) + 1, int(stem) - 1, int(stem) + 100_000, 1):
                other = f"{folder}/{number:020d}{dot}{end}"
                if other not in image:
                    yield f"{path} is there as {other} too", {**image, other: content}
        yield f"{path} has a copy beside it", {**image, f"{path}~": content, f"{folder}/.{name}.swp": content}


def _exchanged(image: Image) -> Iterator[Case]:
    paths = list(_files(image))
    for first in paths:
        for second in paths:
            if first < second and first.rpartition("/")[0] == second.rpartition("/")[0]:
                yield f"{first} and {second} are exchanged", {**image, first: image[second], second: image[first]}


def _renamed(image: Image) -> Iterator[Case]:
    """One bit of a name is another."""
    for path, content in _files(image).items():
        folder, _, name = path.rpartition("/")
        for position in range(len(name)):
            for bit in range(7):
                letter = chr(ord(name[position]) ^ 1 << bit)
                other = f"{folder}/{name[:position]}{letter}{name[position + 1 :]}"
                if letter not in "/\0" and other not in image and not other.endswith(("/.", "/..")):
                    rest = {key: value for key, value in image.items() if key != path}
                    yield f"{path} is called {other}", {**rest, other: content}


def _lines(image: Image) -> Iterator[Case]:
    """A line that is lost, there twice, or in the place of the next."""
    chance = random.Random(5)
    for path, content in _files(image).items():
        lines = content.splitlines(keepends=True)
        for at in {0, len(lines) - 1, *(chance.randrange(len(lines)) for _ in range(4))}:
            without = [*lines[:at], *lines[at + 1 :]]
            yield f"{path} lacks line {at}", {**image, path: b"".join(without)}
            yield f"{path} has line {at} twice", {**image, path: b"".join([*lines[:at], lines[at], *lines[at:]])}
            if at + 1 < len(lines):
                turned = [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
                yield f"{path} has line {at} after the next", {**image, path: b"".join(turned)}


SORTS = [_lost, _emptied, _cut, _zeroed, _grown, _doubled, _exchanged, _renamed, _lines]


def _told(truth: Truth, where: str, image: Image) -> str:
    """What a case comes to.  What a page cannot know of is at least known to who checks the store."""
    try:
        return judge(truth, image, where)
    except Missing as missing:
        if verify(ROOT, fs=SimFileSystem(image)).problems:
            return "only verify tells"
        if missing.untold:
            return "nobody can tell"  # nothing else in a store knows of an instant that did not run
        raise


def _sample(cases: list[Case]) -> list[Case]:
    """As many of each folder."""
    chance = random.Random(1)
    folders: dict[str, list[Case]] = {}
    for case in cases:
        folders.setdefault(case[0].split("/")[3].split(" ")[0], []).append(case)
    return [case for found in folders.values() for case in chance.sample(found, min(SAMPLE, len(found)))]


@pytest.mark.parametrize("sort", SORTS, ids=lambda sort: sort.__name__.strip("_"))
def test_whatever_becomes_of_a_file_nothing_wrong_is_served_and_nothing_is_hidden(truth, sort):
    cases = _sample(list(sort(truth.image)))
    found: Counter[str] = Counter()
    wrong: list[str] = []
    for where, image in cases:
        try:
            found[_told(truth, where, image)] += 1
        except Exception as error:
            wrong.append(f"{where}: {error!r}")
    print(f"{sort.__name__.strip('_')}: {len(cases)} cases, {dict(found)}")
    print("\n".join(wrong))
    assert wrong == []
    assert "refused without a reason" not in found
