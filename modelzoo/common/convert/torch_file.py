"""Reads PyTorch's .bin files: weights only, so that no code in them runs. Writes none."""

import pickle
from typing import NamedTuple

from cerebras_tf.errors import CheckpointError, ConfigError
from cerebras_tf.installing import install_peers


class Place(NamedTuple):
    """Shape of a tensor."""

    shape: tuple[int, ...]


class TorchReader:
    """The tensors of one file, which stay on disk until they are read."""

    def __init__(self, path):
        try:
            import torch
        except ImportError as error:
            raise ConfigError(
                f"{path}: needs PyTorch to be read. Received: no module torch. "
                f"Run `{install_peers()}`, or take the model's .safetensors files, which need "
                "nothing."
            ) from error
        self.path = str(path)
        try:
            self._tensors = _load(torch, self.path)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise CheckpointError(
                f"{path}: must be a whole PyTorch file of weights. Received: {first}. Download or "
                "copy it again, or take the model's .safetensors files."
            ) from error
        self.places = {name: Place(tuple(x.shape)) for name, x in self._tensors.items()}

    def read(self, name):
        """Reads one tensor as float32."""
        return self._tensors[name].float().contiguous().numpy()


def _load(torch, path):
    with open(path, "rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"  # files of PyTorch before 1.6 cannot be mapped
    return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
