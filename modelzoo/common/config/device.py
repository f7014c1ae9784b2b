"""Checks runconfig.device, which has the host run a model in place of the wafer."""

from __future__ import annotations

from cerebras_tf.errors import ConfigError


def check_against_wafer(runconfig):
    """Raises a ConfigError where runconfig.device stands beside what is of the wafer alone."""
    if not runconfig.device:
        return
    if runconfig.cs_ip:
        raise ConfigError(
            f"device: runs the model on the host, so cs_ip must be empty. Received: device "
            f"{runconfig.device!r}, cs_ip {runconfig.cs_ip!r}. Drop one of them."
        )
    if runconfig.compile_only:
        raise ConfigError(
            "compile_only: compiles for the wafer, and with device the host runs the model as "
            f"TensorFlow has it. Received: device {runconfig.device!r}. Drop one of them."
        )


def check_device(device):
    """Raises a ConfigError if this TensorFlow has no such device; it would take another."""
    import tensorflow.compat.v1 as tf

    devices = tf.config.list_physical_devices()
    names = [item.name.replace("/physical_device:", "/") for item in devices]
    wanted = (device or names[0]).lower().replace("device:", "").lstrip("/")
    if f"/{wanted}" not in map(str.lower, names):
        raise ConfigError(
            f"device: must be one that TensorFlow has here: {', '.join(names)}. Received: "
            f"{device!r}. Leave it out to train on the wafer."
        )
