"""`cerebras-tf tensorboard`: TensorBoard without the notes that it prints when it starts."""

import logging
import threading
import warnings
from pathlib import Path

from cerebras_tf.api import positive_int, set_stop_message
from cerebras_tf.errors import ConfigError
from cerebras_tf.suggestions import did_you_mean_path


def add_arguments(parser):
    """Adds the arguments of the command."""
    text = "model folder, or a folder of several (default: model_dir)"
    parser.add_argument("folder", nargs="?", default="model_dir", metavar="DIR", help=text)
    text = "port of the page (default: 6006, or the next that is free)"
    parser.add_argument("--port", type=positive_int, metavar="N", help=text)
    text = "accept connections from other computers"
    parser.add_argument("--bind_all", action="store_true", help=text)


def run(args):
    """Serves the page until Ctrl-C."""
    if not Path(args.folder).is_dir():
        raise ConfigError(
            f"tensorboard: must be a folder. Received: {args.folder}. "
            f"{did_you_mean_path(args.folder) or 'Train a model first, or name its model_dir.'}"
        )
    url = serve(args)
    print(f"TensorBoard of {args.folder}: {url} (Ctrl-C ends it)", flush=True)
    set_stop_message("TensorBoard has ended")
    threading.Event().wait()


def serve(args):
    """Starts the server in a thread; returns the address of its page."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # of the graphs of a resumed run
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
        from tensorboard import default, program

        board = program.TensorBoard(default.get_plugins())
        words = ["tensorboard", "--logdir", args.folder, "--load_fast", "false"]
        words += ["--port", str(args.port)] if args.port else []
        board.configure(words + ["--bind_all"] * args.bind_all)
        try:
            return board.launch()
        except program.TensorBoardServerException as error:
            raise ConfigError(
                f"tensorboard: the port must be free. Received: {args.port}, {error}. Use another "
                "with --port."
            ) from error
