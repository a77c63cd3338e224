# SPDX-License-Identifier: Apache-2.0
"""Changing the profiles of the user: add one, choose the active one, remove one."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fluss.db.profiles import FILE_NAME, Profile, active_profile, check_known, config_dir, load_profiles
from fluss.errors import ConfigError


class ProfileExistsError(ConfigError):
    """There is a profile of this name already."""


def named_profile(name: str | None = None) -> Profile | None:
    """The profile with this name; without one the active profile, or None if there is none."""
    if name is None:
        return active_profile()
    profiles, _ = load_profiles()
    return profiles[check_known(name, profiles)]


def save_profile(profile: Profile, *, replace: bool = False) -> bool:
    """Store a profile; the first one becomes the active one. Gives whether it is the active one."""
    profiles, active = load_profiles()
    if profile.name in profiles and not replace:
        hint = "replace it, or choose another name"
        raise ProfileExistsError(f"there is a profile {profile.name!r} already", hint=hint)
    profiles[profile.name] = profile
    active = active or profile.name
    _write(profiles, active)
    return active == profile.name


def use_profile(name: str) -> None:
    """Make a profile the active one."""
    profiles, _ = load_profiles()
    _write(profiles, check_known(name, profiles))


def remove_profile(name: str) -> None:
    """Remove a profile; if it is the active one, none is active afterwards."""
    profiles, active = load_profiles()
    del profiles[check_known(name, profiles)]
    _write(profiles, None if active == name else active)


def _write(profiles: dict[str, Profile], active: str | None) -> None:
    import yaml

    document: dict[str, Any] = {} if active is None else {"active": active}
    document["profiles"] = {
        name: {key: value for key, value in asdict(profile).items() if key != "name" and value is not None}
        for name, profile in profiles.items()
    }
    folder = config_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Replaced in one step: a crash leaves the old file or the new one.
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False, encoding="utf-8") as file:
            yaml.safe_dump(document, file, sort_keys=False)
        os.replace(file.name, Path(folder) / FILE_NAME)
    except OSError as error:
        raise ConfigError(f"cannot write the profiles in '{folder}': {error.strerror}") from None
