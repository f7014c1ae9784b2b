"""Writes records to files that appear whole or not at all, and the manifest that describes them."""

import contextlib
import fcntl
import hashlib
import json
import os
from pathlib import Path

from cerebras_tf import user_files
from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.user_files import open_regular, reason
from cerebras_tf.whole_file import remove_partial, sync, write_whole
from modelzoo.common.data.preparation import examples, record_stream

MANIFEST = "manifest.json"
PROGRESS = ".progress"
ENDS_BYTES = 1 << 16
MAX_NAMED = 3  # files in an error


def check_name(option, name):
    """Raises a ConfigError if the beginning of file names, given by an option, is none."""
    if not name or "/" in name:
        raise ConfigError(
            f"--{option}: must be a prefix of file names, without folders. Received: {name!r}. Set "
            "folders with --output_dir."
        )


class RecordWriter:
    """Writes TFRecords to numbered files of at most `records_per_file` records.

    Args:
        records_per_file: records of a file; None puts no limit.
    """

    def __init__(self, folder, prefix, records_per_file=None, suffix=".tfrecords"):
        self.files = []
        self._folder = Path(folder)
        self._prefix = prefix
        self._records_per_file = records_per_file
        self._suffix = suffix
        self._file = None
        self._count = 0

    def write(self, features):
        """Writes a tf.train.Example from arrays and bytes; see examples.encode_example."""
        self.write_bytes(examples.encode_example(features))

    def write_sequence(self, feature_lists):
        """Writes a tf.train.SequenceExample; see examples.encode_sequence_example."""
        self.write_bytes(examples.encode_sequence_example(feature_lists))

    def write_bytes(self, record):
        """Writes one serialized record."""
        if self._file is None:
            self._file = self.open(str(self._partial))
        self.append(self._file, record)
        self._count += 1
        if self._count == self._records_per_file:
            self.close()

    def open(self, path):
        """Opens a file for `append`; a writer of another format overrides it."""
        try:
            import tensorflow.compat.v1 as tf
        except ImportError:
            return record_stream.RecordStream(path)
        return tf.io.TFRecordWriter(path)

    def append(self, file, record):
        """Adds one record to an open file."""
        file.write(record)

    def close(self):
        """Closes the current file and renames it to its final name."""
        if self._file is None:
            return
        self._file.close()
        sync(self._partial)
        final = self._folder / f"{self._prefix}-{len(self.files):05d}{self._suffix}"
        entry = {"file": final.name, "records": self._count, **content_of(self._partial)}
        self._partial.replace(final)
        self.files.append(entry)
        self._file, self._count = None, 0

    @property
    def _partial(self):
        return self._folder / f".{self._prefix}-{len(self.files):05d}.partial"


def sha256_of(path):
    """Returns the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def ends_sha256(path):
    """Returns that of the first and the last ENDS_BYTES of a file, of all where it has no more.

    Cheap enough for every start of a run.
    """
    with open_regular(path) as file:
        first = file.read(ENDS_BYTES)
        file.seek(max(len(first), os.fstat(file.fileno()).st_size - ENDS_BYTES))
        return hashlib.sha256(first + file.read()).hexdigest()


def content_of(path):
    """Returns what a manifest holds of a file's content."""
    return {
        "bytes": Path(path).stat().st_size,
        "sha256": sha256_of(path),
        "ends_sha256": ends_sha256(path),
    }


def json_text(value):
    """Returns the JSON that `write_json` writes."""
    return json.dumps(value, indent=1) + "\n"


def write_json(path, value):
    """Writes JSON, whole or not at all."""
    write_whole(path, json_text(value))


def check_same(path, text):
    """Raises a ConfigError if a file is there that another preparation wrote, with another text."""
    path = Path(path)
    if path.exists() and path.read_bytes() != text.encode("utf-8"):
        raise ConfigError(
            f"{path}: exists, and was made from other input or with other settings. Received: a "
            "run that would replace it. Use another --output_dir, or remove it."
        )


def read_json(path, key="settings"):
    """Reads what `write_json` wrote, an object that has a key."""
    try:
        return user_files.read_json(path, {key: dict})
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: must be a file written by cerebras-tf prepare. Received: {reason(error)}. "
            "Use another --output_dir, or remove this one."
        ) from error


def first_names(names):
    """Returns the first of some names, and how many more there are, as an error shows them."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(list(names)[:MAX_NAMED])}{more}"


def _files_changed(before, now):
    """Names the files that differ between two descriptions of input files, see documents.py."""
    if not all(isinstance(value, list) and value and value[0] for value in (before, now)):
        return ""
    if not all(isinstance(entry, list) for value in (before, now) for entry in value):
        return ""
    names = dict.fromkeys(e[0] for e in [*before, *now] if e not in before or e not in now)
    return f" ({first_names(names)})"


def lost_file(folder, described):
    """Returns the fault of the first file of a manifest that was changed or is missing, or None.

    Of content of the same size its beginning and its end count.
    """
    try:
        for entry in described["files"]:
            path, size = folder / entry["file"], entry["bytes"]
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                state = "gone" if found is None else f"of {found} bytes instead of {size}"
                return f"{entry['file']}, which is {state}"
            # Manifests of earlier versions do not have it.
            if entry.get("ends_sha256") not in (None, ends_sha256(path)):
                return f"{entry['file']}, which is another file of as many bytes"
    except (LookupError, TypeError):
        return "a list of files without names and sizes"
    return None


@contextlib.contextmanager
def in_use(folder):
    """Makes a folder, and within keeps other preparations from writing to it."""
    os.makedirs(folder, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY)
    try:
        # Workers that were forked hold it, too: they may still write when their parent is gone.
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(opened)
        raise ConfigError(
            f"{folder}: must not be in use by another preparation. Received: a folder in use. Wait "
            "until it ends, or use another --output_dir."
        ) from error
    except OSError:  # a file system without locks
        pass
    try:
        remove_partial(folder)
        yield
    finally:
        os.close(opened)


class Progress:
    """Remembers which units of a preparation are done, so that it can be started again.

    Args:
        settings: what the records depend on; another run in the same folder must have the same.
    """

    def __init__(self, folder, settings):
        self.folder = Path(folder)
        self.settings = json.loads(json.dumps(settings))
        self._marks = self.folder / PROGRESS
        self._marks.mkdir(parents=True, exist_ok=True)
        self._check_settings(self.folder / MANIFEST)
        if self._has_begun():
            self._check_settings(self._marks / "settings.json")
        else:
            for path in self._parts():
                path.unlink()
        write_json(self._marks / "settings.json", {"settings": self.settings})

    def _has_begun(self):
        """Whether the folder has whole files of a run before."""
        files = {path for path in self.folder.iterdir() if path.is_file()}
        return bool(files.difference(self._parts())) or any(self._marks.glob("unit-*.json"))

    def _parts(self):
        """Lists what a run before has left unfinished."""
        return [path for path in self.folder.glob(".*.partial") if path.is_file()]

    def _check_settings(self, path):
        if not path.exists():
            return
        before = read_json(path)["settings"]
        keys = sorted(set(before) | set(self.settings))
        changed = [
            key + _files_changed(before.get(key), self.settings.get(key))
            for key in keys
            if before.get(key) != self.settings.get(key)
        ]
        if changed:
            raise ConfigError(
                f"{self.folder}: contains files made with another {' and '.join(changed)}. "
                "Received: a run with new settings. Use another --output_dir, or remove this one."
            )

    def manifest(self):
        """Returns the manifest of a finished run, or None."""
        path = self.folder / MANIFEST
        if not path.exists():
            return None
        manifest = read_json(path, "counts")
        problem = lost_file(self.folder, manifest)
        if problem:
            raise DataError(
                f"{self.folder}: must contain the files that its {MANIFEST} lists. Received: "
                f"{problem}. Remove {MANIFEST} to make all of them again, or restore them."
            )
        return manifest

    def done(self, unit):
        """Returns the record of `unit`; None if there is none or its files are incomplete."""
        path = self._marks / f"unit-{unit:05d}.json"
        found = read_json(path, "counts") if path.exists() else None
        return None if found is None or lost_file(self.folder, found) else found

    def mark(self, unit, result):
        """Records that `unit` is done."""
        write_json(self._marks / f"unit-{unit:05d}.json", result)

    def finish(self, manifest):
        """Writes the manifest and forgets the progress."""
        write_json(self.folder / MANIFEST, {"settings": self.settings, **manifest})
        for path in self._marks.iterdir():
            path.unlink()
        self._marks.rmdir()
