"""Folders made visible to the workers of a cluster; mounts nothing, for there is no cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VolumeMount:
    """A named volume and where workers see it.

    Attributes:
      name: the name of the volume.
      mount_path: the path under which workers see it.
    """

    name: str
    mount_path: str
