"""Console output: log lines with their time, without TensorFlow's internal messages."""

import contextlib
import logging
import os
import signal
import sys
import time
import warnings

from cerebras_tf.api import counted as counted  # for the models
from cerebras_tf.api import get_logger, without_lines

# Starts of tf.estimator's log lines that are internal or repeat another line.
NOISE = (
    "Using config:",
    "Calling model_fn.",
    "Done calling model_fn.",
    "Create CheckpointSaverHook.",
    "Graph was finalized.",
    "Running local_init_op.",
    "Done running local_init_op.",
    "Calling checkpoint listeners ",
    "Not using Distribute Coordinator.",
    "Running training and evaluation locally",
    "Start train and evaluate loop.",
    "Skipping training since max_steps has already saved.",
    "Warm-starting with WarmStartSettings:",
    "Warm-starting variables only in TRAINABLE_VARIABLES.",
    "Could not find trained model in model_dir:",
    "Starting evaluation at ",
    "Inference Time : ",
    "Finished evaluation at ",
    "Saving 'checkpoint_path' summary ",
    "Performing the final export in the end of training.",
)
EVERY_S = 30.0
TIME = "%Y-%m-%d %H:%M:%S"
LINE = "%(asctime)s %(levelname)s:%(name)s:%(message)s"


def log_loading(text, package="TensorFlow"):
    """Prints a line before a package is loaded, which takes seconds."""
    if {"TensorFlow": "tensorflow", "PyTorch": "torch"}[package] not in sys.modules:
        print(f"{time.strftime(TIME)} {text}; loading {package} ...", file=sys.stderr, flush=True)


def logger():
    """Returns the logger of TensorFlow if that is imported, else that of this project."""
    return get_logger()


def show_progress():
    """Shows lines of progress with their time, where TensorFlow is not used."""
    found = get_logger()
    if not logging.getLogger().handlers and found.level == logging.NOTSET:
        found.setLevel(logging.INFO)
    for handler in found.handlers:
        handler.setFormatter(logging.Formatter(LINE, TIME))


def quiet_native_logging():
    """Silences TensorFlow's C++ lines below errors; only before TensorFlow is imported.

    A level that the environment sets stays.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def quiet_logging(tf):
    """Shows the progress of a run, without the lines of `NOISE` and deprecation messages."""
    tf.logging.set_verbosity(tf.logging.INFO)
    with without_lines([b"failed call to cuInit"]):  # no driver; a GPU is not needed
        tf.config.list_physical_devices("GPU")
    # A tied table's gradient is made dense by TensorFlow; the wafer never runs that graph.
    warnings.filterwarnings("ignore", message="Converting sparse IndexedSlices")
    logger = logging.getLogger("tensorflow")
    for handler in logger.handlers:
        if getattr(handler, "stream", None) in (sys.stdout, sys.stderr):
            handler.setFormatter(logging.Formatter(LINE, TIME))
    if not any(isinstance(item, _NoiseFilter) for item in logger.filters):
        logger.addFilter(_NoiseFilter())


@contextlib.contextmanager
def exit_on_signal(line):
    """Within: SIGINT, SIGTERM and SIGHUP print their name and `line`, and end the process.

    It is used while modules are imported, which may swallow exceptions. Outside the main thread,
    and for ignored signals, nothing changes.
    """

    def end(number, _):
        line_end = b"\n" if os.isatty(2) else b""  # a terminal has just shown ^C
        with contextlib.suppress(OSError):
            os.write(2, line_end + f"{signal.Signals(number).name}: {line}\n".encode())
        os._exit(128 + number)

    with contextlib.ExitStack() as undo:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.getsignal(number)
            with contextlib.suppress(ValueError):  # only the main thread may
                if before not in (signal.SIG_IGN, None):
                    signal.signal(number, end)
                    undo.callback(signal.signal, number, before)
        yield


class _NoiseFilter(logging.Filter):
    """Hides `NOISE`, and the progress of an evaluation but for a line every `EVERY_S` seconds."""

    def __init__(self):
        super().__init__()
        self._due_s = 0.0

    def filter(self, record):
        text = record.getMessage()
        now = time.monotonic()
        if text.startswith("Starting evaluation at "):
            self._due_s = now + EVERY_S
        elif text.startswith("Evaluation ["):
            if now < self._due_s:
                return False
            self._due_s = now + EVERY_S
        return not (text.startswith(NOISE) or "Instructions for updating" in text)
