"""The main job once through, on real recordings or on made ones: ``chunkstore demo``.

Files -> dask ingest -> store -> plain xarray -> shuffled windows -> a torch model, for Avro and for audio.
Each step prints what it did and how long it took.
"""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chunkstore.errors import ConfigError, IngestError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from rich.console import Console

__all__ = ["Inputs", "demo", "find_inputs", "register"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the demo ingests."""

    avro: str
    """Folder of Avro files."""
    key: str
    """Field whose values tell the sequences apart."""
    audio: str
    """Folder with one folder of clips a class."""
    rate: int
    """Sample rate to ingest at, in Hz."""
    made: bool
    """Whether the recordings were made for the demo."""


def find_inputs(data: str | None, scratch: Path) -> Inputs:
    """Return real recordings where ``data`` holds them, else recordings made in ``scratch``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     find_inputs(None, Path(folder)).made
    True
    """
    if data is not None:
        avro, audio = Path(data) / "avro" / "weather", Path(data) / "audio" / "esc10"
        if avro.is_dir() and audio.is_dir():
            return Inputs(str(avro), "station", str(audio), 32000, made=False)
    from ingest.recordings import make_avro, make_birds

    make_avro(scratch / "avro")
    make_birds(scratch / "birds", clips=8)
    return Inputs(str(scratch / "avro"), "station", str(scratch / "birds"), 32000, made=True)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the two stores.")] = Path("demo-out"),
    data: Annotated[
        str | None,
        typer.Option(
            help="Folder with avro/weather and audio/esc10; recordings are made where it is not there."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Training steps from each store.")] = 300,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace stores of an earlier run.")] = False,
) -> None:
    """Ingest sensor readings and sounds, look at the stores, and train a small model from each.

    Example: `chunkstore demo --out demo-out --overwrite`
    """
    if steps < 1:
        raise ConfigError(f"{steps} training steps are too few; use 1 or more")
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "the demo trains with torch: pip install 'chunkstore[torch,audio]'"
        ) from error
    torch.set_num_threads(1)  # the models are too small to be worth more, and windows are cut beside them
    from rich.console import Console

    console = Console(soft_wrap=True)
    start = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    inputs = find_inputs(data, out / "recordings")
    console.print(
        "Recordings made for the demo, with the real encoders:" if inputs.made else "Real recordings:",
        inputs.avro,
        "and",
        inputs.audio,
        highlight=False,
        soft_wrap=True,
    )
    sensors = _ingest(console, "avro", inputs.avro, out / "sensors.zarr", overwrite, sequence_key=inputs.key)
    sounds = _ingest(
        console, "audio", inputs.audio, out / "sounds.zarr", overwrite, rate=inputs.rate, label_from="parent"
    )
    _view(console, sensors)
    _forecast(console, sensors, "temp", steps)
    _classify(console, sounds, inputs.rate, steps)
    console.rule(style="dim")
    console.print(f"The whole demo took {time.perf_counter() - start:.0f} s. Look on with:")
    for line in (
        f"chunkstore info {sensors}",
        f"chunkstore report {sounds} -o report.html --window {inputs.rate}",
    ):
        console.print("  " + line, highlight=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the verb ``demo`` to the command line."""
    app.command()(demo)


def _ingest(console: Console, kind: str, inputs: str, url: Path, overwrite: bool, **options: Any) -> str:
    """Ingest one folder on dask's local cluster, and say what it took."""
    import chunkstore
    import ingest

    console.rule(f"[bold]ingest {kind}[/]", align="left")
    run: Callable[..., Any] = ingest.ingest_avro if kind == "avro" else ingest.ingest_audio
    began = time.perf_counter()
    result = run([inputs], str(url), overwrite=overwrite, progress=True, **options)
    seconds = time.perf_counter() - began
    if result.exit_code not in (0, 3):
        raise IngestError(f"the {kind} ingest of {inputs} ended with exit code {result.exit_code}")
    from chunkstore.info import describe
    from chunkstore.text import human_bytes

    with chunkstore.open_store(url) as store:
        found = describe(store)
    files = [f for f in Path(inputs).rglob("*") if f.is_file()]
    encoded = sum(f.stat().st_size for f in files)
    raw = sum(f["bytes"] for f in found["fields"])
    stored = sum(f["bytes_stored"] for f in found["fields"])
    rows = "rows" if kind == "avro" else "samples"
    console.print(
        f"{found['n_obs']:,} {rows} in {found['sequences']['count']} sequences from {len(files)} files "
        f"in {seconds:.1f} s, starting the workers included",
        highlight=False,
    )
    console.print(
        f"bytes: {human_bytes(encoded)} in files, {human_bytes(raw)} raw, {human_bytes(stored)} stored",
        highlight=False,
    )
    return str(url)


def _view(console: Console, url: str) -> None:
    """Show a store as plain xarray sees it, with nothing of ours."""
    import xarray

    console.rule("[bold]xarray.open_zarr, nothing of ours[/]", align="left")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on consolidated metadata, which is as intended
        console.print(str(xarray.open_zarr(url)), highlight=False, markup=False, soft_wrap=True)


def _train(  # noqa: PLR0917 - of this module only
    console: Console,
    what: str,
    dataset: Any,
    model: torch.nn.Module,
    loss_of: Callable[[Mapping[str, torch.Tensor]], torch.Tensor],
    steps: int,
) -> tuple[float, float]:
    """Train for some steps, print speed and losses, and return the first and the last loss.

    Both are means over a twentieth of the steps, so that one odd batch does not decide.
    """
    import torch

    rate = _reader_speed(dataset)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses: list[float] = []
    windows = 0
    epoch = 0
    began = time.perf_counter()
    while len(losses) < steps:
        dataset.set_epoch(epoch)
        before = len(losses)
        for batch in torch.utils.data.DataLoader(dataset, batch_size=None):
            optimizer.zero_grad()
            loss = loss_of(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
            windows += len(batch["x"])
            if len(losses) == steps:
                break
        if len(losses) == before:
            raise ConfigError(f"the store holds no window for training {what}; use longer recordings")
        epoch += 1
    seconds = time.perf_counter() - began
    mean = max(1, steps // 20)
    first, last = sum(losses[:mean]) / mean, sum(losses[-mean:]) / mean
    console.print(
        f"{what}: {steps} steps, {windows:,} windows in {seconds:.1f} s; first loss {first:.3f}, "
        f"last loss {last:.3f}",
        highlight=False,
    )
    console.print(
        f"windows a second: {rate:,.0f} read alone, {windows / seconds:,.0f} with the model's work",
        highlight=False,
    )
    return first, last


def _reader_speed(dataset: Any, seconds: float = 2.0) -> float:
    """Windows a second of the dataset alone, the second time round: what comes from disk is there by then."""
    import torch

    began, windows = 0.0, 0
    for warm in (True, False):
        began, windows = time.perf_counter(), 0
        for batch in torch.utils.data.DataLoader(dataset, batch_size=None):
            windows += len(batch["x"])
            if time.perf_counter() - began > (5 * seconds if warm else seconds):
                break
    return windows / max(1e-9, time.perf_counter() - began)


def _forecast(console: Console, url: str, target: str, steps: int) -> tuple[float, float]:
    """Forecast one field 6 steps ahead from 48 steps of all float fields."""
    import torch

    import chunkstore

    console.rule("[bold]train a forecast on the sensors[/]", align="left")
    torch.manual_seed(0)
    store = chunkstore.open_store(url)
    fields = [n for n, f in store.fields.items() if f.dtype.startswith("float") and not f.items]
    at = fields.index(target)
    scale = torch.tensor([store.statistics[n].std or 1.0 for n in fields]).float()[:, None]
    middle = torch.tensor([store.statistics[n].mean or 0.0 for n in fields]).float()[:, None]
    past, ahead = 48, 6
    dataset = chunkstore.ZarrWindowDataset(store, past + ahead, fields=fields, batch_size=128, seed=0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(2 * len(fields) * past, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, ahead),
    )

    def loss_of(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        x = (batch["x"].float() - middle) / scale
        known = ~torch.isnan(x)
        x = torch.where(known, x, torch.zeros(()))
        # what is missing is told to the model, and not asked of it
        seen = torch.cat([x[..., :past], known[..., :past].float()], dim=1)
        # persistence is hard to beat: the model says how the value will differ from the last one
        error = model(seen) + x[:, at, past - 1 : past] - x[:, at, past:]
        wanted = known[:, at, past:]
        loss: torch.Tensor = (error.square() * wanted).sum() / wanted.sum().clamp(min=1)
        return loss

    return _train(console, f"{target} in 6 steps", dataset, model, loss_of, steps)


def _classify(console: Console, url: str, rate: int, steps: int) -> tuple[float, float]:
    """Tell the classes of one-second stretches of sound apart."""
    import torch

    import chunkstore

    console.rule("[bold]train a classifier on the sounds[/]", align="left")
    torch.manual_seed(0)
    store = chunkstore.open_store(url)
    classes = store.sequences.categories("label")
    dataset = chunkstore.ZarrWindowDataset(
        store, rate, stride=rate // 8, labels=["label"], batch_size=32, seed=0
    )
    window = torch.hann_window(512)
    model = torch.nn.Sequential(
        torch.nn.Conv1d(64, 48, 5, padding=2),
        torch.nn.ReLU(),
        torch.nn.Conv1d(48, 48, 5, padding=2, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool1d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(48, len(classes)),
    )

    def loss_of(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        sound = batch["x"].float().flatten(1)
        sound = sound / (sound.std(dim=1, keepdim=True) + 1e-6)
        power = torch.stft(sound, 512, 512, window=window, return_complex=True).abs()
        bands = torch.nn.functional.avg_pool1d(power[:, 1:].transpose(1, 2), 4).transpose(1, 2)
        return torch.nn.functional.cross_entropy(model(torch.log1p(bands)), batch["label"])

    return _train(console, f"{len(classes)} classes", dataset, model, loss_of, steps)
