"""Random damage to a file: at its bytes, at its numbers, and inside its compression."""

import gzip
import io
import re
import zipfile

NUMBERS = (b"-1", b"0", b"1099511627776", b"9" * 30, b"1e308", b"nan", b"1" * 5000, b"")


def mutated(content, random):
    """Damaged content of a file.

    Args:
        content: Content of a whole file.
        random: A ``random.Random``.
    """
    if random.random() < 0.7:  # below the checksums of an archive
        if content[:2] == b"\x1f\x8b":
            return gzip.compress(_damaged(gzip.decompress(content), random))
        if content[:2] == b"PK":
            return _repacked(content, random)
    return _damaged(content, random)


def _repacked(content, random):
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as whole, zipfile.ZipFile(out, "w") as damaged:
        chosen = random.choice(whole.namelist())
        for info in whole.infolist():
            data = whole.read(info)
            if info.filename == chosen and random.random() < 0.1:
                continue
            changed = _damaged(data, random) if info.filename == chosen else data
            damaged.writestr(info.filename, changed, compress_type=info.compress_type)
    return out.getvalue()


def _damaged(content, random):
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 5))):
        random.choice(KINDS)(data, random)
    return bytes(data)


def _place(data, random):
    early = random.random() < 0.5  # headers are where sizes stand
    return random.randrange(min(len(data), 128) if early else len(data)) if data else 0


def _flip(data, random):
    if data:
        data[_place(data, random)] ^= 1 << random.randrange(8)


def _overwrite(data, random):
    start = _place(data, random)
    length = random.choice((1, 2, 4, 8))
    data[start : start + length] = bytes([random.choice((0, 1, 127, 128, 255))]) * length


def _cut(data, random):
    del data[_place(data, random) :]


def _remove(data, random):
    start = _place(data, random)
    del data[start : start + random.choice((1, 4, 50))]


def _repeat(data, random):
    start = _place(data, random)
    part = data[start : start + random.choice((1, 10, 200))]
    data[start:start] = part * random.choice((1, 3, 1000))


def _insert(data, random):
    start = _place(data, random)
    data[start:start] = bytes(random.randrange(256) for _ in range(random.choice((1, 4, 40))))


def _renumber(data, random):
    found = list(re.finditer(rb"\d+", data))
    if found:
        start, end = random.choice(found).span()
        data[start:end] = random.choice(NUMBERS)


KINDS = (_flip, _overwrite, _cut, _remove, _repeat, _insert, _renumber, _renumber)
