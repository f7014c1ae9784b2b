"""Hugging Face folders as models: read tensor by tensor, written as transformers writes them."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union
from unittest import mock

import numpy as np
import torch

from cerebras_tf.capture_torch.lowering import DTYPES, array_of
from cerebras_tf.errors import CheckpointError, ConfigError
from cerebras_tf.ir import Array, TensorType
from cerebras_tf.ir.types import HALF_TYPES
from cerebras_tf.kernels.half_precision import as_float32, to_storage
from cerebras_tf.memoryx.folder_lock import whole_folder
from cerebras_tf.memoryx.safetensors_file import (
    INDEX,
    SHARD_BYTES,
    SINGLE,
    WEIGHT_TYPES,
    TensorFile,
    write_shards,
    write_weights,
)
from cerebras_tf.memoryx.store import FileRegion, reading
from cerebras_tf.torch_step.adapter import (
    ADAPTER,
    ADAPTER_CONFIG,
    AdapterFolder,
    adapter_config,
    adapter_name,
    adapter_tensors,
    read_file,
    read_object,
)
from cerebras_tf.torch_step.lora import LoraSettings, add_lora, lora_layers
from cerebras_tf.torch_step.training import TorchTraining
from cerebras_tf.user_files import read_weight_index

CONFIG = "config.json"
# The files that are written, last the one that makes the others a model.
_MODEL_FILES = ("model*.safetensors", INDEX, CONFIG)
_ADAPTER_FILES = (ADAPTER, ADAPTER_CONFIG)
# A training, or the folder of its checkpoint; None: the tensors of torch.
Trained = Union[TorchTraining, str, Path, None]
# Returns a module that contains the model, and its further parameters by their names in files.
Head = Callable[[torch.nn.Module], tuple[torch.nn.Module, Mapping[str, torch.nn.Parameter]]]
_LOG = logging.getLogger("cerebras_tf")
# Files that are copied: tokenizer, chat template, generation config; no weights, no state.
_CARRIED = re.compile(r"^[^.].*\.(json|txt|jinja|model|tiktoken)$")
_LEFT = re.compile(r"\.index\.json$|^(config|trainer_state|adapter_config|all_results)\.json$")
# Names of parameters in old folders.
_OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))
_SHOWN = 5


class PretrainedFolder:
    """The files of a model.

    Attributes:
        path: the folder.
        config: of config.json.
        regions: where every tensor is stored, by name.

    Raises:
        CheckpointError: a file is missing or damaged, or a tensor has an unknown type.
        ConfigError: the model is quantized, or has code of its own.
    """

    def __init__(self, path: Union[str, Path]) -> None:
        self.path = Path(path)
        self.config = read_object(self.path / CONFIG)
        for key in ("quantization_config", "auto_map"):
            if self.config.get(key):
                raise ConfigError(
                    f"{self.path / CONFIG}: must not have {key}. Received: "
                    f"{str(self.config[key])[:80]}. Use a model of transformers in "
                    f"{', '.join(WEIGHT_TYPES)}."
                )
        index = self.path / INDEX
        pickled = sorted(path.name for path in self.path.glob("pytorch_model*.bin"))
        if pickled and not any(self.path.glob("*.safetensors")):
            raise CheckpointError(
                f"{self.path}: must contain the weights as {SINGLE} or its shards. Received: "
                f"{pickled[0]}, which may contain code. Run `AutoModel.from_pretrained(FOLDER)."
                "save_pretrained(NEW_FOLDER)` of transformers, with the model's Auto class."
            )
        wanted: dict[str, str] = {}
        if not (self.path / SINGLE).exists() and index.exists():
            wanted = read_file(index, read_weight_index)
        readers = {
            name: TensorFile(self.path / name) for name in sorted(set(wanted.values())) or [SINGLE]
        }
        for name, file in wanted.items():
            if name not in {**readers[file].regions, **readers[file].others}:
                raise CheckpointError(
                    f"{self.path / file}: must contain tensor {name}, as {INDEX} says. Received: a "
                    "file without it. Download or copy it again."
                )
        for reader in readers.values():
            for name, dtype in reader.others.items():
                raise CheckpointError(
                    f"{reader.path}: tensor {name} must be {', '.join(WEIGHT_TYPES)}. Received: "
                    f"{dtype}. Save the model in one of them."
                )
        self.regions = {n: r for reader in readers.values() for n, r in reader.regions.items()}


class PretrainedModel:
    """A model of transformers whose weights stay in their files until they are needed.

    Parameters are float32 on the meta device, buffers have their values. Parameters that the
    folder lacks, such as those of a new classifier, have random values.

    Args:
        folder: with config.json and .safetensors files.
        kind: class of transformers, for example "AutoModelForSequenceClassification"; by default
            the one in config.json.
        head: adds layers to the model of transformers, which ignores them in the folder.
        settings: keys of the config that have other values, for example num_labels.

    Attributes:
        folder: as PretrainedFolder.
        module: the model with its head, in train mode.
        parameters: by the names that transformers writes; tied ones once.
        buffers: those in checkpoints, by name.
        new: parameters that the folder lacks, by name.
        regions: where the others are stored, by name.

    Raises:
        CheckpointError: see PretrainedFolder; or the folder lacks tensors of the model's body, or
            shapes differ.
        ConfigError: transformers has no such class.

    Example:
        pretrained = PretrainedModel("SmolLM2-135M")
        pretrained.add_lora(LoraSettings(rank=16))
        optimizer = torch.optim.AdamW(pretrained.trained(), lr=1e-4)
        model = TorchModel(pretrained.module, batch, optimizer, stored=pretrained.stored())
        training = TorchTraining(model, settings, pretrained.weights())
        for batch in batches:
            training.step(batch)
        pretrained.save_adapter("adapter", training)
        pretrained.save("merged", training)
    """

    def __init__(
        self,
        folder: Union[str, Path],
        kind: Optional[str] = None,
        head: Optional[Head] = None,
        **settings: Any,
    ) -> None:
        self.folder = PretrainedFolder(folder)
        self._settings = settings
        self.module = self._model = _made(self.folder, kind, settings).train()
        self.parameters = dict(self._model.named_parameters())
        persistent = self._model.state_dict(keep_vars=True)
        self.buffers = {n: b for n, b in self._model.named_buffers() if n in persistent}
        self.regions: dict[str, FileRegion] = {}
        self._load(head)
        self.lora: Optional[LoraSettings] = None
        self._targets: list[str] = []

    def _load(self, head: Optional[Head]) -> None:
        """Finds the tensors of parameters and buffers, and initializes new parameters."""
        base = getattr(self._model, "base_model_prefix", "")
        prefix = f"{base}."
        # Names in the folder, by those that this release of transformers has for them.
        self._file_names = _renamed(self._model, self.folder.regions)
        regions = {new: self.folder.regions[name] for new, name in self._file_names.items()}
        found = _Tensors(regions, prefix)
        aliases: dict[int, list[str]] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            aliases.setdefault(id(parameter), []).append(name)
        for name, parameter in self.parameters.items():
            region = found.take(aliases[id(parameter)], parameter)
            if region is not None:
                self.regions[name] = region
        missing = [name for name in self.parameters if name not in self.regions]
        is_body = getattr(self._model, base, None) is None
        output = getattr(self._model.get_output_embeddings(), "weight", None)
        body = [
            name
            for name in missing
            if (is_body or name.startswith(prefix) or self.parameters[name] is output)
            and ".pooler." not in f".{name}"
        ]
        if body or not self.regions:
            raise CheckpointError(
                f"{self.folder.path}: must contain all weights of {type(self.module).__name__}. "
                f"Received: a folder without {_listed(body or missing)}. Use a folder of this "
                "model."
            )
        for name, buffer in self.buffers.items():
            region = found.take([name], buffer)
            if region is not None:
                buffer.copy_(torch.from_numpy(_numbers(region)))
        for owner in dict.fromkeys(name.rpartition(".")[0] for name in missing):
            self._initialize(self._model.get_submodule(owner), owner, missing)
        self.parameters = dict(self._model.named_parameters())
        if head is not None:
            self.module, added = head(self._model)
            for name, parameter in added.items():
                self.parameters[name] = parameter
                region = found.take([name], parameter)
                if region is None:
                    missing.append(name)
                else:
                    self.regions[name] = region
        self.new = {name: self.parameters[name] for name in missing}
        if missing:
            _LOG.warning("%s: weights with random values: %s", self.folder.path, _listed(missing))
        if found.left:
            _LOG.warning("%s: tensors that are not used: %s", self.folder.path, _listed(found.left))

    def _initialize(self, owner: torch.nn.Module, path: str, missing: Collection[str]) -> None:
        """Gives new parameters of a module the values that transformers gives them."""
        for name, parameter in owner.named_parameters(recurse=False):
            if f"{path}.{name}" in missing:
                owner.register_parameter(name, torch.nn.Parameter(torch.zeros(parameter.shape)))
        if hasattr(owner, "reset_parameters"):
            owner.reset_parameters()
        self._model._init_weights(owner)

    def add_lora(self, settings: LoraSettings) -> None:
        """Freezes all but new parameters, and adds LoRA; see lora.add_lora."""
        self._targets = add_lora(self.module, settings, self.new)
        self.lora = settings

    def load_adapter(self, folder: Union[str, Path]) -> None:
        """Freezes all but new parameters, and adds a LoRA that was trained before.

        Args:
            folder: a LoRA adapter as peft or `save_adapter` wrote it.

        Raises:
            CheckpointError: it is of another model, of another form of LoRA, or incomplete.
        """
        adapter = AdapterFolder(folder)
        adapter.check_layers(self.module)
        self.add_lora(adapter.settings)
        parameters = adapter_tensors(self.module, self.new)
        regions = adapter.take(parameters)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.from_numpy(_numbers(regions[name])))

    def trained(self) -> list[torch.nn.Parameter]:
        """The parameters that are trained, for an optimizer."""
        return [p for p in self.module.parameters() if p.requires_grad]

    def stored(self, module: Optional[torch.nn.Module] = None) -> dict[str, str]:
        """Dtypes of the weights that are not trained, as they are in the files.

        Args:
            module: what is captured, if it is not `self.module`; it must contain it.
        """
        parameters = dict((module or self.module).named_parameters())
        return {
            name: region.dtype
            for name, region in self.weights(module).items()
            if region.dtype in HALF_TYPES and not parameters[name].requires_grad
        }

    def weights(self, module: Optional[torch.nn.Module] = None) -> dict[str, FileRegion]:
        """Where the values of parameters are, by their names now; see TorchTraining."""
        known = {id(self.parameters[name]): region for name, region in self.regions.items()}
        given = (module or self.module).named_parameters()
        return {name: known[id(p)] for name, p in given if id(p) in known}

    def save(
        self,
        target: Union[str, Path],
        trained: Trained = None,
        dtype: Optional[str] = None,
        overwrite: bool = False,
        max_shard_bytes: int = SHARD_BYTES,
        files: Optional[Mapping[str, str]] = None,
    ) -> None:
        """Writes a folder that transformers opens, tensor by tensor; LoRA is merged.

        Args:
            target: the folder. It is complete, or not written.
            trained: where trained weights are: the training, or the folder of a checkpoint; None
                for the module's own tensors.
            dtype: of the weights; None for those that they have in the folder they come from.
            max_shard_bytes: largest size of a file.
            files: texts of further files by name, which replace those of the folder.

        Raises:
            CheckpointError: there is a model already, and `overwrite` is False.
            ConfigError: the dtype is none of float32, float16 and bfloat16; or the module's own
                tensors have no data.
        """
        if dtype not in (None, *WEIGHT_TYPES):
            raise ConfigError(
                f"dtype: must be one of {', '.join(WEIGHT_TYPES)}. Received: {dtype!r}."
            )
        values, specs = _Values(self, trained), self._types(dtype)
        with self._written(target, overwrite, _MODEL_FILES, files) as folder:
            named = {self._file_name(name): spec for name, spec in specs.items()}
            tensors = ((self._file_name(n), values.of(n, spec.dtype)) for n, spec in specs.items())
            write_shards(folder, named, tensors, max_shard_bytes)
            _write_object(folder / CONFIG, self._config(dtype))

    def _file_name(self, name: str) -> str:
        """The name of a tensor in the folder, also where transformers has a newer one."""
        return self._file_names.get(name, name)

    def _types(self, dtype: Optional[str]) -> dict[str, TensorType]:
        """Types of what is written, by name."""
        common, found = self._dtype(), {}
        for name, tensor in {**self.parameters, **self.buffers}.items():
            kept = self.regions[name].dtype if name in self.regions else common
            if name in self.buffers:
                kept = DTYPES[tensor.dtype]
            given = dtype if dtype and tensor.is_floating_point() else kept
            found[name] = TensorType(given, tuple(tensor.shape))
        return found

    def save_adapter(
        self,
        target: Union[str, Path],
        trained: Trained = None,
        overwrite: bool = False,
        files: Optional[Mapping[str, str]] = None,
    ) -> None:
        """Writes a folder that peft opens: LoRA and new layers, float32.

        Args:
            target, trained, files: see `save`.

        Raises:
            ConfigError: the model has no LoRA.
            CheckpointError: there is an adapter already, and `overwrite` is False.
        """
        if self.lora is None:
            raise ConfigError("adapter: the model must have LoRA. Received: none. Call add_lora.")
        values = _Values(self, trained)
        own = adapter_tensors(self.module, self.new)
        tensors = {adapter_name(name): tensor for name, tensor in own.items()}
        specs = {n: TensorType("float32", tuple(t.shape)) for n, t in tensors.items()}
        base = str(self.folder.path.resolve())
        config = adapter_config(self.module, self.lora, self._targets, self.new, base)
        with self._written(target, overwrite, _ADAPTER_FILES, files) as folder:
            found = ((name, values.trained(tensor)) for name, tensor in tensors.items())
            write_weights(folder / ADAPTER, specs, found)
            _write_object(folder / ADAPTER_CONFIG, config)

    def _config(self, dtype: Optional[str]) -> dict[str, Any]:
        """The config.json of what is written."""
        config = dict(self.folder.config)
        if self._settings:
            config = json.loads(self._model.config.to_json_string())
            config.pop("use_cache", None)
            config.update({k: v for k, v in self.folder.config.items() if k == "use_cache"})
        config["architectures"] = [type(self._model).__name__]
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype or self._dtype()
        return config

    @contextlib.contextmanager
    def _written(
        self,
        target: Union[str, Path],
        overwrite: bool,
        patterns: Sequence[str],
        files: Optional[Mapping[str, str]],
    ) -> Iterator[Path]:
        """Within: a folder that becomes `target`, with the tokenizer and other small files."""
        source, files = self.folder.path, dict(files or {})
        carried = [
            path
            for path in sorted(source.iterdir())
            if path.is_file() and _CARRIED.search(path.name) and not _LEFT.search(path.name)
        ]
        names = (*(path.name for path in carried), *files)
        if Path(target).exists() and Path(target).samefile(source):
            raise CheckpointError(
                f"{target}: must be another folder than that of the model, whose files are read. "
                "Received: the same."
            )
        with whole_folder(target, (*dict.fromkeys(names), *patterns), overwrite) as folder:
            for path in carried:
                shutil.copyfile(path, folder / path.name)
            for name, text in files.items():
                (folder / name).write_text(text, encoding="utf-8")
            yield folder

    def _dtype(self) -> str:
        """The dtype of most weights."""
        found = [region.dtype for region in self.regions.values()]
        return max(WEIGHT_TYPES, key=found.count)


def load_tensors(module: torch.nn.Module, regions: Mapping[str, FileRegion]) -> None:
    """Reads parameters and buffers of a module from files; those on the meta device become real.

    Args:
        regions: where values are stored, by the names of `named_parameters` and `named_buffers`.
    """
    made: dict[int, torch.nn.Parameter] = {}
    with torch.no_grad():
        for name, old in list(module.named_parameters(remove_duplicate=False)):
            if name in regions and id(old) not in made:
                value = torch.from_numpy(_numbers(regions[name])).to(old.dtype)
                made[id(old)] = torch.nn.Parameter(value, old.requires_grad)
            if id(old) in made:
                owner, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(owner), leaf, made[id(old)])
        for name, buffer in module.named_buffers():
            if name in regions:
                buffer.copy_(torch.from_numpy(_numbers(regions[name])))


class _Values:
    """The values of a model's tensors after training."""

    def __init__(self, model: PretrainedModel, trained: Trained) -> None:
        self._model, self._trained = model, trained
        module = model.module
        tensors = {**dict(module.named_buffers()), **dict(module.named_parameters())}
        if isinstance(trained, TorchTraining):
            tensors = trained.model.exported.tensors
        elif trained is not None:
            self._file = TensorFile(Path(trained) / SINGLE)
        self._names = {id(tensor): name for name, tensor in tensors.items()}
        self._lora = {id(layer.base.weight): layer for _, layer in lora_layers(model.module)}

    def of(self, name: str, dtype: str) -> Array:
        """A tensor by its name in the files, in the storage form of a dtype."""
        model = self._model
        tensor = model.parameters[name] if name in model.parameters else model.buffers[name]
        layer = self._lora.get(id(tensor))
        region = None if self._is_trained(tensor) else model.regions.get(name)
        if region is not None and layer is None and region.dtype == dtype:
            return region.read()
        array = self.trained(tensor) if region is None else _numbers(region)
        if layer is not None:
            array = array + layer.addition(*map(self.trained, (layer.lora_A, layer.lora_B)))
        return to_storage(array, dtype)

    def _is_trained(self, tensor: torch.Tensor) -> bool:
        name, trained = self._names.get(id(tensor), ""), self._trained
        if isinstance(trained, TorchTraining):
            return name in trained.store.specs and trained.store.specs[name].trainable
        return bool(tensor.requires_grad) or (trained is not None and name in self._file.regions)

    def trained(self, tensor: torch.Tensor) -> Array:
        """A tensor as training has it, as float32 if it is floating."""
        name, trained = self._names.get(id(tensor), ""), self._trained
        if isinstance(trained, TorchTraining) and name in trained.store.specs:
            with reading(trained.store, name) as array:
                return as_float32(np.array(array), trained.store.specs[name].type.dtype)
        if trained is not None and not isinstance(trained, TorchTraining):
            if name in self._file.regions:
                return _numbers(self._file.regions[name])
            if name in self._model.module.state_dict(keep_vars=True):
                raise CheckpointError(
                    f"{self._file.path}: must contain {name}. Received: a checkpoint of another "
                    "model. Use one that this model was trained to."
                )
        if tensor.is_meta:
            raise ConfigError(
                f"trained: weights must have data. Received: {name} without. Pass the training or "
                "the folder of a checkpoint."
            )
        return np.asarray(array_of(tensor))


class _Tensors:
    """The tensors of a folder, by the names that the model has for them.

    Folders of a model's body lack its prefix, old ones have other names for norms.

    Attributes:
        left: names of the tensors that were not taken.
    """

    def __init__(self, regions: Mapping[str, FileRegion], prefix: str) -> None:
        self.left, self._regions, self._prefix = dict.fromkeys(regions), regions, prefix

    def take(self, names: Iterable[str], tensor: torch.Tensor) -> Optional[FileRegion]:
        """The region of a tensor that has these names; None if there is none.

        Raises:
            CheckpointError: its shape is another, or its dtype no number of this kind.
        """
        for name in self._spellings(names):
            if name in self._regions:
                self.left.pop(name, None)
                region = self._regions[name]
                if region.shape != tuple(tensor.shape):
                    raise CheckpointError(
                        f"{region.path}: tensor {name} must have shape {list(tensor.shape)}, as "
                        f"{CONFIG} says. Received: {list(region.shape)}. Use files of one model."
                    )
                if tensor.is_floating_point() and region.dtype not in WEIGHT_TYPES:
                    raise CheckpointError(
                        f"{region.path}: tensor {name} must be of type {', '.join(WEIGHT_TYPES)}. "
                        f"Received: {region.dtype}. Save the model in one of them."
                    )
                return region
        return None

    def _spellings(self, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            without = name.removeprefix(self._prefix)
            for each in dict.fromkeys([name, without, f"{self._prefix}{name}"]):
                yield each
                for new, old in _OLD_NAMES:
                    if each.endswith(new):
                        yield each.removesuffix(new) + old


def _numbers(region: FileRegion) -> Array:
    return as_float32(region.read(), region.dtype)


def _renamed(model: torch.nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Names in files by those that they have in a model, as transformers renames them."""
    try:
        mapping = importlib.import_module("transformers.conversion_mapping")
        rules = mapping.get_model_conversion_mapping(model, add_legacy=False)
    except (ImportError, AttributeError):  # of older releases, which rename nothing
        rules = []
    found = {}
    for name in names:
        new = name
        for rule in rules:
            if type(rule).__name__ == "WeightRenaming":
                new = rule.rename_source_key(new)[0]
        found[new] = name
    return found


def _made(
    folder: PretrainedFolder, kind: Optional[str], settings: Mapping[str, Any]
) -> torch.nn.Module:
    """The model on the meta device; buffers, which are computed, on the CPU."""
    import transformers

    if kind is None:
        kind = str((folder.config.get("architectures") or [None])[0])
    made = getattr(transformers, kind, None)
    try:
        if not hasattr(made, "from_config") and not hasattr(made, "_from_config"):
            raise ValueError("transformers has no such model.")
        if "trust_remote_code" in settings:
            raise ConfigError("settings: must not have trust_remote_code. Remove it.")
        config = transformers.AutoConfig.from_pretrained(
            str(folder.path), trust_remote_code=False, **settings
        )
        own = getattr(made, "from_config", None)  # of auto classes
        build: Any = made._from_config if own is None else own  # type: ignore[union-attr]
        for name in settings:
            if not hasattr(config, name) and name != "attn_implementation":
                raise ConfigError(
                    f"settings: must be keys of {type(config).__name__}. Received: {name}."
                )
        with _without_data():
            model = build(config, dtype=torch.float32)
    except ConfigError:
        raise
    except (AttributeError, KeyError, ValueError, OSError) as error:
        raise ConfigError(
            f"{folder.path / CONFIG}: must describe a model of transformers "
            f"{transformers.__version__}. Received: model_type "
            f"{folder.config.get('model_type')!r}, class {kind}. {str(error).splitlines()[0]}"
        ) from error
    model.config.use_cache = False
    return model


@contextlib.contextmanager
def _without_data() -> Iterator[None]:
    """Within: parameters of new modules are on the meta device, buffers are not."""
    register = torch.nn.Module.register_parameter

    def on_meta(self: torch.nn.Module, name: str, parameter: Any) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        register(self, name, parameter)

    with mock.patch.object(torch.nn.Module, "register_parameter", on_meta):
        yield


def _write_object(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _listed(names: Collection[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(list(names)[:_SHOWN]) + more
