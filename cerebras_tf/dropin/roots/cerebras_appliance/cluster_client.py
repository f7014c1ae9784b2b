"""Volumes mounted in the workers of a cluster. Without a cluster they have no effect."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VolumeMount:
    """A volume and the path where workers mount it."""

    name: str
    mount_path: str
