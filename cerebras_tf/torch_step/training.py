"""Trains a PyTorch model on the runtime."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import torch

from cerebras_tf.address.choose import choose_wafer
from cerebras_tf.capture_torch.export import LOSS, Batch
from cerebras_tf.capture_torch.lowering import array_of
from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.errors import CheckpointError, ConfigError, DataError
from cerebras_tf.frontend.description import describe
from cerebras_tf.frontend.micro_batches import MicroBatches
from cerebras_tf.frontend.model_step import ModelStep, RunSettings
from cerebras_tf.frontend.program_cache import ProgramCache
from cerebras_tf.ir import Array, TensorType, Variable
from cerebras_tf.kernels.compiled_threads import set_num_threads
from cerebras_tf.kernels.half_precision import as_float32
from cerebras_tf.memoryx.disk import FileDisk
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.process_folder import folder_of
from cerebras_tf.memoryx.store import FileRegion, MemoryStore, Store, reading, write
from cerebras_tf.runtime.capacity import available_bytes, memory_share
from cerebras_tf.runtime.profiler import Profiler
from cerebras_tf.runtime.protocol import Wafer
from cerebras_tf.runtime.shared_store import SharedStore
from cerebras_tf.runtime.streaming_plan import check_disk
from cerebras_tf.swarmx import job, mpi
from cerebras_tf.torch_step.batch_form import arrays_of_batch
from cerebras_tf.torch_step.checkpoint import load_checkpoint, save_checkpoint
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.settings import TrainingSettings

_DIGEST_BYTES = 4096  # of every weight
# Returns the value of a variable, in the shape and storage dtype of the store; or where it is
# stored, in any floating dtype.
Weight = Union[Callable[[], Array], FileRegion]


@dataclass(frozen=True)
class Reports:
    """Where a training reports what it does.

    Attributes:
        log: logs a line.
        phase: context manager that logs a named phase.
        profiler: times every instruction; None for no profile.
    """

    log: Callable[[str], Any] = lambda line: None
    phase: Callable[[str], Any] = nullcontext
    profiler: Optional[Profiler] = None


class TorchTraining:
    """Steps of a captured model on the wafer.

    Weights and optimizer state are copied from the torch objects before the first step, and back by
    `copy_back`.

    Args:
        model: the captured model.
        settings: where variables are stored, precision, micro-batches, wafers.
        weights: values of parameters and buffers whose torch tensors have no data, by name. Each
            is called once, and released before the next. Weights that are not trained are read
            from their files when a step needs them; the files must not change.
        gradients: names of parameters whose gradients each step returns.
        reports: see Reports.

    Attributes:
        global_step: steps made.
        store: the variables.
        swarm: the wafers, one process each, that make every step together.
        wafer: the wafer at an address; None for that of this process.

    Raises:
        ConfigError: a setting does not fit the model or the number of processes.

    Example:
        model = TorchModel(module, batches[0], torch.optim.AdamW(module.parameters()))
        training = TorchTraining(model, TrainingSettings(precision="bfloat16"))
        for batch in batches:
            print(training.step(batch)["loss"])
        training.copy_back()
        training.close()
    """

    def __init__(
        self,
        model: TorchModel,
        settings: Optional[TrainingSettings] = None,
        weights: Optional[Mapping[str, Weight]] = None,
        gradients: Iterable[str] = (),
        reports: Optional[Reports] = None,
    ) -> None:
        self.model = model
        self.settings = settings = settings or TrainingSettings()
        self.global_step = 0
        self.reports = reports or Reports()
        self._weights = dict(weights or {})
        model.gradients = tuple(gradients)
        for what, names in (("weights", self._weights), ("gradients", model.gradients)):
            unknown = [name for name in names if name not in model.exported.specs]
            if unknown:
                raise ConfigError(
                    f"{what}: names must be of the model's parameters. Received: {unknown[0]}."
                )
        if settings.memoryx_moment_dtype is not None and model.update is not None:
            model.update.store_moments(settings.memoryx_moment_dtype)
        set_num_threads(settings.num_threads)
        self.swarm = mpi.swarm()
        model.restore_seed(self.swarm.objects(model.seed())[0])
        self.batches_per_step = settings.batches_here
        # Weights that stay in their files.
        self._frozen = {
            name: given
            for name, given in self._weights.items()
            if isinstance(given, FileRegion) and not model.specs[name].trainable
        }
        self.wafer = choose_wafer(settings.cs_ip, settings.credentials_path, self.reports.log)
        if self.wafer is None:
            self.store = _make_store(model.specs.values(), settings, self._frozen)
        else:
            self.store = self.wafer.store(model.specs.values(), shared=self.swarm.size > 1)
        self._is_filled = False
        self._step: Optional[ModelStep] = None
        self._draws: dict[str, int] = {}

    def step(self, batch: Union[Batch, Sequence[Batch]]) -> dict[str, Any]:
        """Runs a step.

        Args:
            batch: a batch; or a list of several, whose gradients are averaged for one update. Every
                step must have the same number of batches.

        Returns:
            "loss", a float, averaged over the batches and wafers; outputs of the loss function; and
            "gradient/NAME" of the gradients that were asked for.

        Raises:
            DataError: another number of batches, or a shape that the model does not allow.
        """
        given = self._features(batch)
        step = self._step_for(given)
        step.run(given[0] if len(given) == 1 else given, self.global_step)
        self.global_step += self.model.trains
        names = self.model.results
        found = {name: array for name, array in step.results.items() if name in names}
        return {**found, LOSS: float(found[LOSS])} if LOSS in found else found

    def prepare(self, batch: Union[Batch, Sequence[Batch]], fills: bool = True) -> str:
        """Compiles for a step of these shapes; returns lines about the model and its memory.

        Args:
            fills: whether variables get their first values; False if no step will follow.
        """
        given = self._features(batch)
        step = self._step_for(given, fills)
        split = step.micro_batches
        first = given[0] if split is None or split.rows is None else split.parts(given[0])[0]
        step.prepare({n: TensorType(a.dtype.name, a.shape) for n, a in first.items()})
        count = sum(p.numel() for p in self.model.exported.parameters())
        tokens = first["input_ids"].size if "input_ids" in first else None
        return describe(count, tokens, self.settings.precision, step)

    @property
    def model_step(self) -> Optional[ModelStep]:
        """What runs the steps; None before the first."""
        return self._step

    @property
    def program(self) -> Any:
        """The program that ran last; None before."""
        return None if self._step is None else self._step.program

    def fill(self) -> None:
        """Writes the first values of all variables, unless that is done."""
        if self._is_filled:
            return
        self._is_filled = True
        update, tensors = self.model.update, self.model.exported.tensors
        self._link()
        for name in self.store.specs:
            if name in self._frozen:
                continue
            if name in self._weights:
                _take(self.store, name, self._weights[name])
            elif name in tensors:
                if tensors[name].is_meta:
                    raise ConfigError(
                        "weights: must have every parameter and buffer whose tensor has no data. "
                        f"Received: none for {name}. Add it, or load the model."
                    )
                write(self.store, name, array_of(tensors[name]))
            else:
                assert update is not None
                write(self.store, name, update.first_value(name))
        self.store.broadcast([name for name in self.store.specs if name not in self._frozen], 0)

    def _link(self) -> None:
        """Links weights that are not trained to their files, on every wafer."""
        for name, region in self._frozen.items():
            if not self.store.local.link_source(name, region):
                _take(self.store, name, region)

    def save(self, folder: Union[str, Path], state: Optional[Mapping[str, Any]] = None) -> None:
        """Writes a checkpoint, completely or not at all; the first of several processes writes.

        Args:
            state: what else the run needs to continue; `restore` returns it.
        """
        self.fill()
        draws = self._step.session.random_state() if self._step is not None else self._draws
        update = self.model.update
        found = {
            "global_step": self.global_step,
            "seed": self.model.seed(),
            "draws": draws,
            "groups": [] if update is None else update.groups(),
            "trained": self._trained(),
            "run": dict(state or {}),
        }
        if self._frozen:
            found["frozen"] = self._digest()
        names = [name for name in self.model.exported.specs if name not in self._frozen]
        ties, writes = self.model.exported.ties, self.swarm.rank == 0
        save_checkpoint(Path(folder), self.store, names, ties, found, self._frozen, writes)

    def restore(self, folder: Union[str, Path]) -> dict[str, Any]:
        """Continues from a checkpoint; returns the state that was given to `save`.

        The seed and the learning rates become those of the checkpoint. Other settings of the
        optimizer, and which parameters are trained, stay. What differs is logged.

        Raises:
            CheckpointError: it is damaged, or of another model or optimizer.
        """
        found = load_checkpoint(Path(folder), self.store, self._frozen)
        if self._frozen and found.get("frozen") != self._digest():
            raise CheckpointError(
                f"{folder}: weights that are not trained must be those of the checkpoint. "
                f"Received: others, in {next(iter(self._frozen.values())).path}. Use the same "
                "folder."
            )
        self._link()
        self._is_filled = True
        self.global_step, self._draws = found["global_step"], found["draws"]
        self._log_differences(found)
        if found["seed"] != self.model.seed():
            self._step = None  # its programs have the other seed
            self.model.restore_seed(found["seed"])
        if self.model.update is not None:
            for line in self.model.update.restore_rates(found["groups"]):
                self.reports.log(line)
        if self._step is not None:
            self._step.restore_draws(self._draws)
        return dict(found["run"])

    def _trained(self) -> list[str]:
        return [name for name, spec in self.model.exported.specs.items() if spec.trainable]

    def _log_differences(self, saved: Mapping[str, Any]) -> None:
        """Logs in what the model differs from a checkpoint, besides the optimizer."""
        given, old = self.model.given_seed, saved["seed"]
        if given is not None and old != self.model.seed():
            self.reports.log(
                f"seed: is {given} in this call, {old} in the checkpoint; the checkpoint's is used"
            )
        now = self._trained()
        before = saved.get("trained", now)  # older checkpoints do not have it
        for what, names in (("not ", set(before) - set(now)), ("", set(now) - set(before))):
            if names:
                shown = ", ".join(sorted(names)[:3])
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                self.reports.log(
                    f"parameters: {shown}{more} are {what}trained in this call, unlike in the "
                    "checkpoint; this call's choice is used"
                )

    def _digest(self) -> int:
        """A checksum of the first bytes of every weight that is not trained."""
        digest = 0
        for name, region in sorted(self._frozen.items()):
            start = region.first_bytes(_DIGEST_BYTES)
            digest = zlib.crc32(f"{name} {region.type}".encode() + start, digest)
        return digest

    def copy_back(self) -> None:
        """Copies parameters, buffers and the optimizer's state to the torch objects.

        Parameters on the meta device, and their optimizer state, are left out.
        """
        if not self._is_filled:
            return
        for name in self.model.exported.specs:
            tensor = self.model.exported.tensors[name]
            if tensor.is_meta:
                continue
            with reading(self.store, name) as array, torch.no_grad():
                tensor.copy_(tensor_of(array, self.store.specs[name].type.dtype))
        if self.model.update is not None:
            self.model.update.copy_back(self.tensor)

    def tensor(self, name: str) -> torch.Tensor:
        """A copy of a variable: a parameter, a buffer, or "PARAMETER/KEY" of optimizer state."""
        with reading(self.store, name) as array:
            return tensor_of(array, self.store.specs[name].type.dtype)

    def close(self) -> None:
        """Frees all memory; the training must not be used any more."""
        if self._step is not None:
            self._step.close()
        self._step = None
        self.store.close()

    def _features(self, batch: Union[Batch, Sequence[Batch]]) -> list[dict[str, Array]]:
        batches = list(batch) if isinstance(batch, (list, tuple)) else [batch]
        if not batches:
            raise DataError("batch: must be a batch, or a list of batches. Received: none.")
        rates = self.model.update.rates() if self.model.update is not None else {}
        exported, count = self.model.exported, self.settings.micro_batches
        return [{**arrays_of_batch(exported, each, count), **rates} for each in batches]

    def _step_for(self, given: Sequence[Mapping[str, Array]], fills: bool = True) -> ModelStep:
        """The step for this number of batches."""
        if len(given) != self.batches_per_step:
            if self._step is not None or self.settings.batches_here > 1:
                raise DataError(
                    f"batches: every step must have the same number, {self.batches_per_step}. "
                    f"Received: {len(given)}. Pass them as a list."
                )
            self.batches_per_step = len(given)
        if fills:
            self.fill()
        if self._step is None:
            settings, reports = self.settings, self.reports
            run = RunSettings(
                settings.wafer_memory_gb,
                self._micro_batches(given),
                self.swarm,
                profiler=reports.profiler,
                phase=reports.phase,
                log=reports.log,
                wafer=self.wafer,
            )
            self._step = ModelStep(
                self.model, self.store, compiler_options(settings, self.wafer), run
            )
            self._step.want(self.model.results)
            self._step.source.padding_option = "remove_padding=False"
            if settings.compile_dir is not None:
                cache = ProgramCache(settings.compile_dir, "train", reports.log)
                self._step.source.cache, self._step.source.saves = cache, self.swarm.rank == 0
            self._step.restore_draws(self._draws)
        return self._step

    def _micro_batches(self, given: Sequence[Mapping[str, Array]]) -> Optional[MicroBatches]:
        count = self.settings.micro_batches
        names = [name for name in self.model.exported.features if given[0][name].ndim]
        if len(given) > 1:
            if count > 1 or self.swarm.size > 1:
                raise ConfigError(
                    "micro_batches: several batches per step must be used without micro_batches "
                    f"and in one process. Received: {len(given)} batches, micro_batches {count}, "
                    f"{self.swarm.size} processes. Use smaller batches, and more of them."
                )
            return MicroBatches(len(given), None, {name: name for name in names})
        if count == 1:
            return None
        rows = {given[0][name].shape[0] for name in names}
        if self.swarm.size > 1 or len(rows) != 1 or next(iter(rows)) % count:
            raise ConfigError(
                "micro_batches: must divide the number of rows, which all tensors of a batch must "
                f"have, in one process. Received: {count} for {sorted(rows)} rows, "
                f"{self.swarm.size} processes. Set a divisor, or 1."
            )
        self.model.rows = next(iter(rows)) // count
        return MicroBatches(count, self.model.rows, {name: name for name in names})


def compiler_options(settings: TrainingSettings, wafer: Optional[Wafer] = None) -> Options:
    """How programs are compiled; `wafer` is one at an address."""
    return Options(
        precision=settings.precision,
        attention=settings.attention_precision != "float32",
        keep_float32=settings.keep_float32,
        strip=settings.remove_padding,
        staging=settings.memoryx_dir is not None if wafer is None else wafer.on_files,
        wafers=mpi.swarm().size,
    )


def _make_store(
    specs: Iterable[Variable], settings: TrainingSettings, linked: Collection[str]
) -> Store:
    """The store of the settings, shared if there are several processes.

    Args:
        linked: names of variables that stay in other files.
    """
    specs, swarm, folder = list(specs), mpi.swarm(), settings.memoryx_dir
    own: Store = MemoryStore(specs)
    if folder is not None:
        folder = os.path.abspath(folder)
        folder = folder if swarm.size == 1 else folder_of(job.rank(), folder)
        check_disk([spec for spec in specs if spec.name not in linked], folder, swarm.size)
        most = settings.memoryx_ram_gb
        share = memory_share(swarm) or available_bytes()
        own = FileStore(specs, FileDisk(folder, share // 2 if most is None else int(most * 1e9)))
    return own if swarm.size == 1 else SharedStore(own, swarm)


def _take(store: Store, name: str, given: Weight) -> None:
    """Writes a variable."""
    if not isinstance(given, FileRegion):
        write(store, name, given())
        return
    array, dtype = given.read(), store.specs[name].type.dtype
    write(store, name, array if dtype == given.dtype else as_float32(array, given.dtype))


def tensor_of(array: Array, dtype: str) -> torch.Tensor:
    """A copy of an array as a tensor; bfloat16 is stored as bits, and a result as float32."""
    found = torch.from_numpy(array.copy())
    if dtype != "bfloat16":
        return found
    return found.to(torch.bfloat16) if found.is_floating_point() else found.view(torch.bfloat16)
