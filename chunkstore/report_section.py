"""What a report is asked for, and what one of its sections holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError

if TYPE_CHECKING:
    from chunkstore.figures import Figure

__all__ = ["ReportOptions", "Section"]


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What a report shows, apart from the store itself."""

    title: str | None = None
    """Heading; the name of the store if not given."""
    fields: tuple[str, ...] = ()
    """Fields to draw; the first ``MOST_FIELDS`` if none is given."""
    window: int | None = None
    """Length of training windows in obs; without it nothing is said about training."""
    stride: int = 1
    """Obs between the starts of windows."""
    batch_size: int = 256
    """Windows a batch, for the shuffle score."""
    split: str | None = None
    """Part of a split that the windows come from."""
    memory_limit: int | str = "512MiB"
    """Memory that training may use, for the shuffle score."""
    examples: int = 4
    """Sequences, and windows, that are shown."""
    seconds: float = 10.0
    """Longest stretch of sound that can be played, in seconds."""
    seed: int = 0
    """Seed of the choice of examples."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ConfigError(f"a window of {self.window} obs is too short; it must be 1 or more")
        if self.stride < 1:
            raise ConfigError(f"a stride of {self.stride} obs is too short; it must be 1 or more")
        if not 0 <= self.examples <= 64:
            raise ConfigError(f"{self.examples} examples are asked for; a page holds 0 to 64")


@dataclass(slots=True)
class _Item:
    figure: Figure
    key: str = ""
    audio: str = ""


@dataclass(slots=True)
class Section:
    """One part of the page: sentences, tables, figures."""

    key: str
    title: str
    text: list[str] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    figures: list[_Item] = field(default_factory=list)

    def add(self, figure: Figure, audio: str = "") -> None:
        """Add a figure, with a sound to play under it where there is one."""
        self.figures.append(_Item(figure, audio=audio))
