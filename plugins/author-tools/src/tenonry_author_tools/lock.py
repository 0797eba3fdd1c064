"""`tenonry plugins lock`: versions and contents of all distributions with plugins, per platform. Command line."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import msgspec
from packaging.utils import canonicalize_name

from tenonry.errors import ConfigError, PluginError
from tenonry.interfaces.command import Command
from tenonry_author_tools.first_party import source_folder

DEFAULT_FILE = "tenonry.lock"
FORMAT = 1
PREFIX = "tenonry"
IGNORED = {".pyc"}
# Written by installers, and different from one installation to the next.
VOLATILE = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
DECLARATIONS = ("METADATA", "entry_points.txt")  # decide which modules are loaded
CODE = {".py", ".so", ".pyd"}
OUTPUTS = {"build", "dist"}  # of build tools, at the top of a source folder
UNVERIFIABLE = ""  # hash of a distribution without a list of files


class Content(TypedDict):
    """Locked state of one distribution."""

    version: str
    sha256: str


class LockCommand(Command):
    """Writes a lock file, or compares the installation with one. Imports none of the locked distributions."""

    summary = "Write versions and hashes of plugins to a lock file, or compare with one."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "file",
            nargs="?",
            type=Path,
            default=Path(DEFAULT_FILE),
            help="Lock file. [default: %(default)s]",
        )
        parser.add_argument(
            "--check", action="store_true", help="Compare only; status 1 on differences."
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.check:
            sys.stdout.write(f"{check_lock(args.file)} distributions are as in {args.file}\n")
            return 0
        here, found = platform_name(), installed_contents()
        if unknown := [name for name, each in found.items() if each["sha256"] == UNVERIFIABLE]:
            raise PluginError("; ".join(map(_cannot_verify, sorted(unknown))))
        try:
            locked = read_lock(args.file) if args.file.exists() else {}
            locked[here] = found
            text = json.dumps({"format": FORMAT, "platforms": locked}, indent=1, sort_keys=True)
            args.file.write_text(text + "\n", "utf-8")
        except OSError as error:
            raise ConfigError(f"{args.file} cannot be written: {error.strerror}") from error
        sys.stdout.write(f"locked {len(found)} distributions for {here} in {args.file}\n")
        return 0


def check_lock(file: Path) -> int:
    """Compare the installation with a lock file; returns the number of distributions.

    Raises PluginError naming each difference, ConfigError for a file that is no lock of this platform.
    """
    locked, here, found = read_lock(file), platform_name(), installed_contents()
    if here not in locked:
        raise ConfigError(
            f"{file} has no platform {here}, only {', '.join(sorted(locked)) or 'none'}; add this one: "
            f"tenonry plugins lock {file}"
        )
    if differences := compare(locked[here], found):
        raise PluginError(
            f"{file}: {'; '.join(differences)}; to lock again: tenonry plugins lock {file}"
        )
    return len(found)


def platform_name() -> str:
    """Platform of a lock: system, machine and Python."""
    return f"{sys.platform}-{platform.machine()}-py{sys.version_info[0]}.{sys.version_info[1]}"


def installed_contents() -> dict[str, Content]:
    """Distribution → version and hash, of the kernel and of all with plugins or points; the first copy of each."""
    found: dict[str, Content] = {}
    for dist in importlib.metadata.distributions():
        name = canonicalize_name(dist.metadata["Name"] or "")
        groups = {point.group for point in dist.entry_points}
        is_locked = name == PREFIX or any(group.startswith(f"{PREFIX}.") for group in groups)
        if name and is_locked and name not in found:
            found[name] = {"version": dist.version, "sha256": content_hash(dist)}
    return found


def content_hash(dist: importlib.metadata.Distribution) -> str:
    """Hash of a distribution's metadata, and of names and bytes of its files; of an editable one, those of its source.

    Returns UNVERIFIABLE if the installer recorded no files.
    """
    folder = source_folder(dist)
    if folder is None:
        files = {str(file): Path(str(file.locate())) for file in dist.files or ()}
    else:
        files = {file.relative_to(folder).as_posix(): file for file in _source_files(folder)}
    hashes = [
        f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for name, path in sorted(files.items())
        if path.suffix not in IGNORED and path.name not in VOLATILE and path.is_file()
    ]
    if not hashes and folder is None:
        return UNVERIFIABLE
    hashes += [f"{name}\0{dist.read_text(name) or ''}\n" for name in DECLARATIONS]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def _source_files(folder: Path) -> Iterator[Path]:
    """Code of a source folder, and all files of its packages. Build outputs and hidden folders are skipped."""
    for text, names, files in os.walk(folder):
        place = Path(text)
        is_top = place == folder
        names[:] = [
            name
            for name in names
            if not name.startswith((".", "__pycache__"))
            and not name.endswith(".egg-info")
            and not (is_top and name in OUTPUTS)
        ]
        top = folder.joinpath(*place.relative_to(folder).parts[:1])
        is_package = not is_top and (top.name == "src" or (top / "__init__.py").is_file())
        for name in files:
            if is_package or Path(name).suffix in CODE:
                yield place / name


def _cannot_verify(name: str) -> str:
    return f"{name}: its files cannot be verified, as its RECORD is missing or empty: reinstall it"


def compare(locked: dict[str, Content], found: dict[str, Content]) -> list[str]:
    """Differences, one sentence each, with the remedy."""
    lines = []
    for name in sorted(locked.keys() | found.keys()):
        old, new = locked.get(name), found.get(name)
        if new is None and old is not None:
            lines.append(f"{name} is not installed: pip install {name}=={old['version']}")
        elif old is None:
            lines.append(f"{name} is not locked: uninstall it, or lock again")
        elif new is not None and new["sha256"] == UNVERIFIABLE:
            lines.append(_cannot_verify(name))
        elif new is not None and old["version"] != new["version"]:
            lines.append(
                f"{name} is {new['version']}: pip install {name}=={old['version']}, or lock again"
            )
        elif new != old:
            lines.append(
                f"files of {name} {old['version']} have changed: reinstall it, or lock again"
            )
    return lines


def read_lock(file: Path) -> dict[str, dict[str, Content]]:
    """Platforms of a lock file. Raises ConfigError."""
    create = "tenonry plugins lock" + ("" if file == Path(DEFAULT_FILE) else f" {file}")
    try:
        content: dict[str, Any] = json.loads(file.read_text("utf-8"))
        if content["format"] != FORMAT:
            raise ConfigError(f"{file} has format {content['format']}; this tenonry reads {FORMAT}")
        return msgspec.convert(content["platforms"], dict[str, dict[str, Content]])
    except FileNotFoundError:
        raise ConfigError(f"{file} not found; create it with: {create}") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"{file} is not a lock file: {type(error).__name__}: {error}; remove it and run: {create}"
        ) from error
