"""A model's folder as Hugging Face's transformers keeps it: config.json and the files of tensors.

Reads .safetensors, in one file or several, and PyTorch's .bin; writes .safetensors. Knows no
model: names are not changed.
"""

import json
from pathlib import Path
from typing import NamedTuple

from cerebras_tf import user_files
from cerebras_tf.api import WEIGHT_TYPES, TensorFile, TensorType, require_numbers, write_shards
from cerebras_tf.errors import CheckpointError, ConfigError
from cerebras_tf.installing import install_peers
from cerebras_tf.user_files import read_torch, reason
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.model_dir.source_files import CONFIG, GENERATION_CONFIG

# Files that go with a model of ours, so that what its YAML does not say comes back.
CARRIED = (CONFIG, GENERATION_CONFIG)
# Files that a conversion writes, last the one that makes the others a model.
WRITTEN = ("*.safetensors", "*.safetensors.index.json", GENERATION_CONFIG, CONFIG)
# Keys of a config.json about its own files, or other spellings of keys that are written again.
_OWN_KEYS = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "num_labels"}
ASSUMED = ("bos_token_id", "eos_token_id")  # which our YAML does not say
_OTHER_SPELLINGS = {"rope_parameters", "rope_scaling", "rope_theta"}
_SINGLE_FILES = ("model.safetensors", "pytorch_model.bin")
SHARD_BYTES = 5 * 10**9  # largest size of a file, as usual there
_INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


class HuggingFaceReader:
    """The tensors of a folder."""

    global_step = 0

    def __init__(self, folder):
        self.folder = Path(folder)
        self.config_path = str(self.folder / CONFIG)
        self.config = read_json(self.config_path)
        index, wanted = self._files()
        self._readers = {name: _open(self.folder / name) for name in index}
        self.shapes, self.places = {}, {}
        for file_name in index:
            for name, shape in shapes_of(self._readers[file_name]).items():
                self.shapes[name], self.places[name] = tuple(shape), file_name
        for name, file_name in wanted.items():
            if self.places.get(name) != file_name:
                raise CheckpointError(
                    f"{self.folder / file_name}: must contain the tensor {name}, according to the "
                    "folder's index. Received: a file without it. Download or copy it again."
                )

    def _files(self):
        """Returns the names of the files, and file by tensor where there is an index."""
        for name in _SINGLE_FILES:
            if (self.folder / name).exists():
                return [name], {}
            index = self.folder / _INDEX_FILES[_SINGLE_FILES.index(name)]
            if index.exists():
                wanted = _read(user_files.read_weight_index, index)
                return sorted(set(wanted.values())), wanted
        raise CheckpointError(
            f"{self.folder}: must contain {', '.join((*_SINGLE_FILES, *_INDEX_FILES))}. Received: "
            "none of them. Use the folder with the model's files."
        )

    def read(self, name):
        """Reads one tensor as float32."""
        return self._readers[self.places[name]].read_weight(name)

    def where(self, name):
        """Returns the path of the file that holds a tensor."""
        return str(self.folder / self.places[name])


def with_carried(config, folder):
    """Adds to a configuration further keys of the original model's, such as token ids.

    Args:
        config: made of our parameters, whose keys win, but for the tokens it assumes.
        folder: folder of the original model's config.json, or of the checkpoint made of it.
    """
    path = Path(folder) / CONFIG
    if not path.exists():
        return config
    carried = read_json(path)
    if carried.get("model_type") != config["model_type"]:
        raise ConfigError(
            f"{path}: model_type must be {config['model_type']!r}, as in the params file. "
            f"Received: {carried.get('model_type')!r}. Set --config_from to the folder of the "
            "original model."
        )
    left = _OWN_KEYS | _OTHER_SPELLINGS
    kept = {key: value for key, value in carried.items() if key not in left}
    first = {key: kept[key] for key in ASSUMED if key in kept}
    return {**kept, **config, **first}


def shapes_of(reader):
    """Returns shape by name of an open file."""
    return {name: region.shape for name, region in reader.regions.items()}


def _open(path):
    if path.suffix != ".bin":
        return TensorFile(path)
    return TorchReader(path)


def read_json(path):
    """Reads a JSON file that holds an object."""
    return _read(lambda path: user_files.read_json(path, dict), path)


def _read(reader, path):
    path = Path(path)
    try:
        return reader(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: must be a JSON file of a model. Received: {reason(error)}. "
            f"{advice_on_path(path.parent, 'Use the folder with all files of the model.')}"
        ) from error


def write_hugging_face(
    folder, config, shapes, tensors, global_step=0, dtype="float32", max_shard_bytes=None
):
    """Writes a folder that transformers loads.

    Args:
        tensors: yields (name, float32 array) in the order of `shapes`.
        max_shard_bytes: largest size of a file's tensors, None for SHARD_BYTES; a larger tensor has
            a file of its own.
    """
    if dtype not in WEIGHT_TYPES:
        types = ", ".join(WEIGHT_TYPES)
        raise ConfigError(f"--dtype: must be one of {types}. Received: {dtype!r}.")
    specs = {name: TensorType(dtype, tuple(shape)) for name, shape in shapes.items()}
    write_shards(Path(folder), specs, tensors, max_shard_bytes or SHARD_BYTES)
    text = json.dumps({**config, "torch_dtype": dtype}, indent=2, sort_keys=True)
    (Path(folder) / CONFIG).write_text(text + "\n", encoding="utf-8")


class Place(NamedTuple):
    """Shape of a tensor."""

    shape: tuple[int, ...]


class TorchReader:
    """The tensors of one file, which stay on disk until they are read."""

    def __init__(self, path):
        self.path = str(path)
        try:
            self._tensors = read_torch(path)
        except ImportError as error:
            raise ConfigError(
                f"{path}: PyTorch must be installed to read this file. Received: no module torch. "
                f"Run `{install_peers()}`, or use the model's .safetensors files."
            ) from error
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path}: must be a complete PyTorch file of weights. Received: {reason(error)}. "
                "Download or copy it again, or use the model's .safetensors files."
            ) from error
        self.regions = {name: Place(tuple(x.shape)) for name, x in self._tensors.items()}

    def read_weight(self, name):
        """Reads one tensor as float32; it must be of a floating point type, without NaN."""
        tensor = self._tensors[name]
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{self.path}: tensor {name} must be of a floating point type. Received: "
                f"{str(tensor.dtype).removeprefix('torch.')}. Save the model in one of them."
            )
        array = tensor.float().contiguous().numpy()
        require_numbers(array, f"{self.path}: tensor {name}")
        return array
