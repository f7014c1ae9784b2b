"""The run configuration: where the wafer is, how many there are, and tf.estimator's own settings.

Also says whether a wafer can be reached at an address.
"""

from __future__ import annotations

import ipaddress
import math
import numbers
import os
import re
import socket
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.compiler.pipeline import PRECISIONS
from cerebras_tf.environment import MOST_THREADS
from cerebras_tf.errors import ConfigError, SystemUnreachableError
from cerebras_tf.quantities import MOST_GB
from cerebras_tf.runtime.capacity import available_bytes
from cerebras_tf.swarmx import job

DEFAULT_PORT = 9000
_CONNECT_TIMEOUT_S = 3.0
_OWN_FIELDS = (
    "cs_ip",
    "system_name",
    "cs_config",
    "stack_params",
    "num_csx",
    "restore_partially",
    "memoryx_dir",
    "memoryx_ram_gb",
    "memoryx_moment_dtype",
    "wafer_memory_gb",
    "micro_batches",
    "use_vsl",
    "profile",
    "precision",
    "keep_float32",
    "multireplica",
    "num_threads",
)


def split_address(address: str) -> tuple[str, int]:
    """Splits `HOST`, `HOST:PORT`, `[IPV6]:PORT` or a bare IPv6 address; the port is 9000 if absent.

    Raises:
      ConfigError: the host is empty or the port is not a number from 1 to 65535.
    """
    host, port_text = address, str(DEFAULT_PORT)
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        port_text = rest[1:] if rest.startswith(":") else rest or port_text
    elif address.count(":") == 1:
        host, port_text = address.split(":")
    if not host or not port_text.isdecimal() or not 1 <= int(port_text) <= 65535:
        raise ConfigError(
            f"cs_ip: an address must read HOST or HOST:PORT. Received: {address!r}. Give the "
            "address of the wafer, or leave cs_ip empty to use the one in this process."
        )
    return host, int(port_text)


def normalize_cs_ip(cs_ip: Optional[str]) -> Optional[str]:
    """Returns `HOST:PORT` (`[HOST]:PORT` for IPv6), or None where `cs_ip` is None or blank."""
    if cs_ip is None or not cs_ip.strip():
        return None
    host, port = split_address(cs_ip.strip())
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_in_process(cs_ip: Optional[str]) -> bool:
    """Says whether `cs_ip` means the wafer emulated in this process.

    That is so for None, for an empty address, and for a loopback address at the wafers' port.
    """
    address = normalize_cs_ip(cs_ip)
    if address is None:
        return True
    host, port = split_address(address)
    if port != DEFAULT_PORT:
        return False
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name
        return False


def refuse_strategies(config: tf.estimator.RunConfig) -> None:
    """Raises ConfigError where a distribution strategy would replicate a model on the wafer."""
    for key in ("train_distribute", "eval_distribute"):
        strategy = getattr(config, key, None)
        if strategy is not None:
            raise ConfigError(
                f"runconfig: {key} must be None on the wafer. Received: "
                f"{type(strategy).__name__}. Leave it out, or use the host (use_cs=False)."
            )


def check_wafer_address(cs_ip: Optional[str]) -> None:
    """Passes where a wafer serves `cs_ip`, which today only the one in this process does.

    Raises:
      SystemUnreachableError: `cs_ip` names another machine or port. The sentence says whether
        anything listens there, found out by a TCP connection of at most 3 s.
    """
    if is_in_process(cs_ip):
        return
    address = normalize_cs_ip(cs_ip)
    assert address is not None
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S):
            finding = "something listens there, but it is not an emulated wafer"
    except socket.gaierror:
        finding = f"the host name {host!r} is not known"
    except TimeoutError:
        finding = f"nothing answers there within {_CONNECT_TIMEOUT_S:g} s"
    except OSError as error:
        finding = f"nothing answers there ({error.strerror or error})"
    raise SystemUnreachableError(
        f"cs_ip: a wafer must answer at the address. Received: {address}; {finding}. Leave cs_ip "
        f"empty or give 127.0.0.1:{DEFAULT_PORT} to use the wafer emulated in this process."
    )


def _check_num_csx(num_csx: Any) -> int:
    if isinstance(num_csx, bool) or not isinstance(num_csx, int) or num_csx < 1:
        raise ConfigError(
            "num_csx: must be a positive whole number of wafers. "
            f"Received: {num_csx!r}. Set num_csx to 1."
        )
    wafers = job.wafers()
    if num_csx not in (1, wafers):
        raise ConfigError(
            f"num_csx: must be the number of processes of this job, {wafers}. "
            f"Received: {num_csx}. Start with csrun_wse --num_csx {num_csx}, or set num_csx to 1: "
            "the launcher's number is taken then."
        )
    return wafers


def _check_count(name: str, value: Any, of: str, most: float = math.inf) -> int:
    number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not number or not 1 <= int(value) <= most:
        limit = "" if most == math.inf else f", at most {most}"
        raise ConfigError(
            f"{name}: must be a positive whole number of {of}{limit}. Received: {value!r}. "
            "Leave it out."
        )
    return int(value)


def _check_gigabytes(name: str, value: Any) -> float:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0 < value < MOST_GB:
        raise ConfigError(
            f"{name}: must be a number of gigabytes (10^9 bytes) above 0 and below {MOST_GB:g}. "
            f"Received: {value!r}. Leave it out to use what the machine has."
        )
    return float(value)


def _check_precision(value: Any) -> None:
    if value not in PRECISIONS:
        raise ConfigError(
            f"precision: must be one of {', '.join(PRECISIONS)}. Received: {value!r}. Leave it out "
            "for float32."
        )


def _check_patterns(value: Any) -> tuple[str, ...]:
    patterns = value if isinstance(value, (list, tuple)) else (value,)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(
                "keep_float32: must be regular expressions of names of operations. Received: "
                f"{pattern!r} ({error}). Correct it, or leave it out."
            ) from error
    return tuple(patterns)


def _checked_folder(memoryx_dir: Any) -> Optional[str]:
    """The folder's path from the root on; None for None."""
    if memoryx_dir is None:
        return None
    try:
        found = os.fsdecode(memoryx_dir)
        if found.strip() and not re.search(r"\0|^~|://", found):
            return os.path.abspath(found)
    except TypeError:  # neither text nor a path
        pass
    raise ConfigError(
        "memoryx_dir: must name a folder of this machine, by a path without ~. Received: "
        f"{memoryx_dir!r}. Leave it out to keep weights in memory."
    )


def _check_memoryx(config: CSRunConfig) -> None:
    if config.memoryx_moment_dtype not in (None, "bfloat16"):
        raise ConfigError(
            "memoryx_moment_dtype: must be bfloat16, or None for float32. Received: "
            f"{config.memoryx_moment_dtype!r}. Leave it out to keep moments in float32."
        )
    if config.memoryx_ram_gb is not None and config.memoryx_dir is None:
        raise ConfigError(
            "memoryx_ram_gb: needs memoryx_dir, without which all weights are in main memory. "
            f"Received: {config.memoryx_ram_gb}. Give memoryx_dir too, or leave memoryx_ram_gb out."
        )


def _check_vsl(config: CSRunConfig) -> None:
    if config.use_vsl is True and config.precision == "emulate":
        raise ConfigError(
            "use_vsl: padding cannot be left out with precision emulate, which runs the graph's "
            "own operations. Received: use_vsl True, precision emulate. Set use_vsl to False, or "
            "leave it out."
        )


def _check_keep_float32(config: CSRunConfig) -> None:
    if config.keep_float32 and config.precision != "bfloat16":
        raise ConfigError(
            "keep_float32: needs precision bfloat16, without which it has no effect. Received: "
            f"{list(config.keep_float32)}, precision {config.precision}. Set precision to "
            "bfloat16, or leave keep_float32 out."
        )


class CSRunConfig(tf.estimator.RunConfig):
    """`tf.estimator.RunConfig` plus what names and sets up the wafer.

    Args:
      cs_ip: address of the wafer, `HOST` or `HOST:PORT`; None, empty or loopback is the wafer
        emulated in this process. No connection is made here; see `check_wafer_address`.
      system_name: a name for the system, as on the platform; kept, and without effect here.
      cs_config: a configuration message such as `cerebras.pb.tf.csconfig_pb2.CSConfig`.
      stack_params: compiler settings of the platform, `{"ir_mode": str, "config": FullConfig}`;
        kept, and without effect here: this compiler has none of them.
      num_csx: number of wafers that train together, one process each, started by csrun_wse. None
        takes `cs_config.num_csx`; 1 takes what the launcher started.
      restore_partially: whether training may go on from a checkpoint that fits in part: variables
        the model lacks are left out, those the checkpoint lacks start anew. Shapes must be equal.
      memoryx_dir: folder on whose disk weights and optimizer state rest; None keeps them in main
        memory. With it a model may be larger than memory. Checkpoints share its contents by links
        where they are on the same file system.
      memoryx_ram_gb: main memory that weights and optimizer state may take with memoryx_dir, in
        10^9 bytes; None takes half of what is free when a call begins. An evaluation in the midst
        of training uses what training holds; one of another checkpoint than training has just
        saved holds its own, up to as much again.
      memoryx_moment_dtype: "bfloat16": moments of the optimizer (moving averages of gradients and
        of their squares) rest in bfloat16 between steps, in half of the bytes, also in checkpoints.
        They are updated in float32 and rounded stochastically by a stream of the variable and the
        step, so that what is repeated gives the same bits; weights stay float32. None keeps
        float32. Either kind of checkpoint is read with and without it.
      wafer_memory_gb: gigabytes (10^9 bytes) that activations, gradients and scratch memory of
        training may take. Where they need more, layers are computed twice, or activations of
        layers rest on the disk of memoryx_dir between the passes, with equal results; None takes
        what the machine has free less a tenth.
      micro_batches: equal parts in which the wafer runs a batch of training, one after another, so
        that it needs activations for the rows of one. Gradients are the mean over the parts, and
        so is the loss; numbers are those of the whole batch but for rounding and for what random
        operations draw. A loss that divides by a count says so by cross_wafer_sum.
      use_vsl: whether padding is left out of what the wafer computes (variable sequence length).
        None does so where the graph proves that no number changes by it; False never does. True
        refuses to train a model where it is not proved, lets predictions of every token leave
        with 0 at padded places, and leaves out padding that only weights of a causal model's loss
        tell, which None does not.
      profile: number of training steps to profile, behind the first two: a trace that
        ui.perfetto.dev opens, `profile/trace.json` in model_dir, and tables of where the time goes.
        None profiles nothing.
      precision: "float32", also for graphs in half precision; or "bfloat16", which rounds operands
        of matrix products to bfloat16 and keeps sums, weights and optimizer state in float32, for
        processors that multiply it faster (AMX, AVX512-BF16); or "emulate", which rounds results of
        every operation to the graph's own type, slowly, so that overflow and loss scaling can be
        studied. None takes bfloat16 where cs_config has use_cbfloat16, else float32.
      keep_float32: regular expressions; with bfloat16, products of operations whose name one of
        them is found in stay float32. Training refuses one that is found in none.
      multireplica: whether as many replicas of the model as are fastest share the wafer and every
        batch in training, with their gradients averaged; in pipelined mode only. The emulated wafer
        computes them together; how many there are is said, and what it predicts follows from it.
      num_threads: threads that share the kernels of a wafer in this process, 1 to 1024; None takes
        CEREBRAS_TF_THREADS of the environment, else one a core. On the host TensorFlow has its own,
        see `tf.config.threading`.
      **kwargs: every argument of `tf.estimator.RunConfig`.

    Raises:
      ConfigError: an address is malformed, more than one wafer is asked for, an amount of memory or
        a dtype of moments is none, or a precision or regular expression is not one.
    """

    def __init__(
        self,
        cs_ip: Optional[str] = None,
        system_name: Optional[str] = None,
        cs_config: Any = None,
        stack_params: Optional[dict[str, Any]] = None,
        num_csx: Optional[int] = None,
        restore_partially: bool = False,
        memoryx_dir: Optional[str] = None,
        memoryx_ram_gb: Optional[float] = None,
        memoryx_moment_dtype: Optional[str] = None,
        wafer_memory_gb: Optional[float] = None,
        micro_batches: int = 1,
        use_vsl: Optional[bool] = None,
        profile: Optional[int] = None,
        precision: Optional[str] = None,
        keep_float32: Sequence[str] = (),
        multireplica: bool = False,
        num_threads: Optional[int] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_own_fields(
            cs_ip=cs_ip,
            system_name=system_name,
            cs_config=cs_config,
            stack_params=dict(stack_params or {}),
            num_csx=getattr(cs_config, "num_csx", 1) if num_csx is None else num_csx,
            restore_partially=bool(restore_partially),
            memoryx_dir=memoryx_dir,
            memoryx_ram_gb=memoryx_ram_gb,
            memoryx_moment_dtype=getattr(memoryx_moment_dtype, "name", memoryx_moment_dtype),
            wafer_memory_gb=wafer_memory_gb,
            micro_batches=micro_batches,
            use_vsl=use_vsl,
            profile=profile,
            precision=precision,
            keep_float32=keep_float32,
            multireplica=bool(multireplica),
            num_threads=num_threads,
        )
        _check_memoryx(self)
        _check_vsl(self)
        _check_keep_float32(self)

    def _set_own_fields(self, **fields: Any) -> None:
        """Checks and stores own fields as `_name`, which is how RunConfig stores its fields."""
        if "cs_ip" in fields:
            fields["cs_ip"] = normalize_cs_ip(fields["cs_ip"])
        if "num_csx" in fields:
            fields["num_csx"] = _check_num_csx(fields["num_csx"])
        if "memoryx_dir" in fields:
            fields["memoryx_dir"] = _checked_folder(fields["memoryx_dir"])
        for name in ("memoryx_ram_gb", "wafer_memory_gb"):
            if fields.get(name) is not None:
                fields[name] = _check_gigabytes(name, fields[name])
        if fields.get("use_vsl") not in (None, True, False):
            raise ConfigError(
                "use_vsl: must be True, False or None. "
                f"Received: {fields['use_vsl']!r}. Leave it out to leave padding out where proved."
            )
        if fields.get("profile") is not None:
            fields["profile"] = _check_count("profile", fields["profile"], "steps")
        if fields.get("num_threads") is not None:
            given = fields["num_threads"]
            fields["num_threads"] = _check_count("num_threads", given, "threads", MOST_THREADS)
        if "micro_batches" in fields:
            fields["micro_batches"] = _check_count(
                "micro_batches", fields["micro_batches"], "parts"
            )
        if fields.get("precision") is not None:
            _check_precision(fields["precision"])
        if "keep_float32" in fields:
            fields["keep_float32"] = _check_patterns(fields["keep_float32"])
        for name, value in fields.items():
            setattr(self, "_" + name, value)

    def replace(self, **kwargs: Any) -> CSRunConfig:
        """Returns a copy with some fields changed: RunConfig's replaceable ones and ours.

        tf.estimator calls `RunConfig.replace` past this method; own fields survive that too,
        because it works on a deep copy.
        """
        own = {name: kwargs.pop(name) for name in _OWN_FIELDS if name in kwargs}
        replaced = super().replace(**kwargs)
        replaced._set_own_fields(**own)
        _check_memoryx(replaced)
        _check_vsl(replaced)
        _check_keep_float32(replaced)
        return replaced

    @property
    def cs_ip(self) -> Optional[str]:
        """The address as `HOST:PORT`, or None where none was given."""
        return self._cs_ip

    @property
    def system_name(self) -> Optional[str]:
        """The name of the system, as it was given."""
        return self._system_name

    @property
    def cs_config(self) -> Any:
        """The configuration message, or None."""
        return self._cs_config

    @property
    def stack_params(self) -> dict[str, Any]:
        """Compiler settings as they were given; empty where none were."""
        return self._stack_params

    @property
    def num_csx(self) -> int:
        """The number of wafers."""
        return self._num_csx

    @property
    def restore_partially(self) -> bool:
        """Whether training may go on from a checkpoint that fits the model in part."""
        return self._restore_partially

    @property
    def multireplica(self) -> bool:
        """Whether replicas of the model share the wafer and every batch."""
        return self._multireplica

    @property
    def num_threads(self) -> Optional[int]:
        """How many threads share the kernels of a wafer; None: as the environment says."""
        return self._num_threads

    @property
    def memoryx_dir(self) -> Optional[str]:
        """Folder of weights and optimizer state on files; None where they are in main memory."""
        return self._memoryx_dir

    @property
    def memoryx_ram_gb(self) -> Optional[float]:
        """Main memory for weights and optimizer state with memoryx_dir, in 10^9 bytes."""
        return self._memoryx_ram_gb

    @property
    def memoryx_bytes(self) -> int:
        """The same in bytes; where it was not given, half of what is free now."""
        if self._memoryx_ram_gb is None:
            return available_bytes() // 2
        return int(self._memoryx_ram_gb * 1e9)

    @property
    def memoryx_moment_dtype(self) -> Optional[str]:
        """What moments of the optimizer rest in, "bfloat16"; None for float32."""
        return self._memoryx_moment_dtype

    @property
    def wafer_memory_gb(self) -> Optional[float]:
        """Gigabytes that activations of training may take; None for what the machine has."""
        return self._wafer_memory_gb

    @property
    def micro_batches(self) -> int:
        """Parts in which a batch of training runs."""
        return self._micro_batches

    @property
    def use_vsl(self) -> Optional[bool]:
        """Whether padding is left out; None: where that is proved to change no number."""
        return self._use_vsl

    @property
    def profile(self) -> Optional[int]:
        """How many steps of training are profiled; None for none."""
        return self._profile

    @property
    def precision(self) -> str:
        """Precision of products on the wafer, one of compiler.pipeline.PRECISIONS."""
        if self._precision is not None:
            return str(self._precision)
        return "bfloat16" if getattr(self._cs_config, "use_cbfloat16", False) else "float32"

    @property
    def keep_float32(self) -> tuple[str, ...]:
        """Regular expressions of names of operations whose products stay float32."""
        return self._keep_float32
