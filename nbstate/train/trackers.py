"""Where a run's numbers go: TensorBoard, Weights & Biases, lines of JSON. Rank 0 writes."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from nbstate.train.core import Core

if TYPE_CHECKING:
    from collections.abc import Mapping


class Tracker:
    """One place that numbers go to. A subclass of one's own can be given to ``log_with``.

    `name` and `log` have to be there; the rest does nothing here.

    Attributes
    ----------
    name : str
        What `Accelerator.get_tracker` knows it by.

    Examples
    --------
    >>> class Last(Tracker):
    ...     name = "last"
    ...
    ...     def log(self, values, step=None):
    ...         self.values = values
    >>> accelerator = Accelerator(log_with=Last())
    >>> accelerator.init_trackers("trial")
    >>> accelerator.log({"loss": 0.5}, step=0)
    >>> accelerator.get_tracker("last").values
    {'loss': 0.5}
    """

    name: str

    @property
    def tracker(self) -> Any:
        """What it writes with, such as wandb's run; itself where that is all there is."""
        return self

    def start(self, project_name: str, directory: Path | None, **settings: Any) -> None:
        """Begin a run.

        Parameters
        ----------
        project_name : str
            The name of the run's project.
        directory : Path or None
            Where files go.
        **settings
            What `init_trackers` was given for this tracker.

        Examples
        --------
        >>> class Told(Tracker):
        ...     name = "told"
        ...
        ...     def start(self, project_name, directory, **settings):
        ...         print(f"{project_name} begins")
        >>> Accelerator(log_with=Told()).init_trackers("trial")
        trial begins
        """

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Keep the settings of the run.

        Examples
        --------
        >>> class Told(Tracker):
        ...     name = "told"
        ...
        ...     def store_init_configuration(self, values):
        ...         print(values)
        >>> Accelerator(log_with=Told()).init_trackers("trial", config={"lr": 0.1})
        {'lr': 0.1}
        """

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Write values: numbers, text, or mappings of numbers.

        Examples
        --------
        >>> class Told(Tracker):
        ...     name = "told"
        ...
        ...     def log(self, values, step=None):
        ...         print(step, values)
        >>> accelerator = Accelerator(log_with=Told())
        >>> accelerator.init_trackers("trial")
        >>> accelerator.log({"loss": 0.5}, step=3)
        3 {'loss': 0.5}
        """
        raise NotImplementedError(f"{type(self).__name__} must say how to log")

    def finish(self) -> None:
        """Write what is left, and end.

        Examples
        --------
        >>> class Told(Tracker):
        ...     name = "told"
        ...
        ...     def finish(self):
        ...         print("that is all")
        >>> accelerator = Accelerator(log_with=Told())
        >>> accelerator.init_trackers("trial")
        >>> accelerator.end_training()
        that is all
        """


class JSONLinesTracker(Tracker):
    """One line of JSON for each `log`, in ``<project_name>.jsonl``."""

    name = "jsonl"
    _file: TextIO

    def start(self, project_name: str, directory: Path | None, **settings: Any) -> None:
        path = _needed(directory, self.name) / f"{project_name}.jsonl"
        self._file = path.open("a", encoding="utf-8", **settings)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        self._write({"config": dict(values)})

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        self._write({"step": step, **values})

    def finish(self) -> None:
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        # Flushed: a rank may leave without any further notice.
        print(json.dumps(line, default=_plain), file=self._file, flush=True)


class TensorBoardTracker(Tracker):
    """Event files for TensorBoard, in a directory named after the project."""

    name = "tensorboard"

    @property
    def tracker(self) -> Any:
        return self.writer

    def start(self, project_name: str, directory: Path | None, **settings: Any) -> None:
        _import("tensorboard", "pip install tensorboard")
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self.writer = writer(str(_needed(directory, self.name) / project_name), **settings)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        text = json.dumps(dict(values), indent=2, default=_plain)
        self.writer.add_text("config", f"```json\n{text}\n```")
        self.writer.flush()

    def log(self, values: Mapping[str, Any], step: int | None = None, **settings: Any) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                self.writer.add_scalars(name, value, step, **settings)
            elif isinstance(value, (int, float)):
                self.writer.add_scalar(name, value, step, **settings)
            else:
                self.writer.add_text(name, str(value), step, **settings)
        self.writer.flush()

    def finish(self) -> None:
        self.writer.close()


class WandBTracker(Tracker):
    """A run of Weights & Biases; ``WANDB_MODE=offline`` keeps it on this machine."""

    name = "wandb"

    @property
    def tracker(self) -> Any:
        return self.run

    def start(self, project_name: str, directory: Path | None, **settings: Any) -> None:
        wandb = _import("wandb", "pip install wandb")
        where = {} if directory is None else {"dir": str(directory)}
        self.run = wandb.init(project=project_name, **{**where, **settings})

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        self.run.config.update(dict(values), allow_val_change=True)

    def log(self, values: Mapping[str, Any], step: int | None = None, **settings: Any) -> None:
        self.run.log(dict(values), step=step, **settings)

    def finish(self) -> None:
        self.run.finish()


class NoTracker:
    """What ranks that do not write get: takes every call and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> NoTracker:
        return self


_KNOWN = {each.name: each for each in (TensorBoardTracker, WandBTracker, JSONLinesTracker)}
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "jsonl": "json"}


class Tracking(Core):
    """The part of an Accelerator that writes numbers down."""

    trackers: list[Tracker]
    _log_with: list[Tracker]

    def _init_tracking(self, log_with: Any) -> None:
        given = [log_with] if isinstance(log_with, (str, Tracker)) else list(log_with or ())
        if "all" in given:
            given = [name for name in _KNOWN if importlib.util.find_spec(_PACKAGES[name])]
        self._log_with = [_tracker(each) for each in given]
        self.trackers = []

    @property
    def logging_dir(self) -> Path | None:
        """Where trackers write."""
        config = self.project_configuration
        given = config.logging_dir or config.project_dir
        return None if given is None else Path(given)

    def init_trackers(
        self,
        project_name: str,
        config: Mapping[str, Any] | None = None,
        init_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Begin a run in every place of ``log_with``, on the main process.

        Parameters
        ----------
        project_name : str
            The name of the run's project.
        config : dict, optional
            The settings of the run, to be kept beside its numbers.
        init_kwargs : dict, optional
            For each tracker's name, further keyword arguments.

        Examples
        --------
        >>> accelerator = Accelerator(log_with="jsonl", project_dir="runs")
        >>> accelerator.init_trackers("digits", config={"lr": 0.1})
        >>> accelerator.log({"loss": torch.tensor(0.5)}, step=0)
        >>> accelerator.end_training()
        """
        if not self.state.is_main_process:
            return
        if self.logging_dir is not None:
            self.logging_dir.mkdir(parents=True, exist_ok=True)
        for tracker in self._log_with:
            settings = (init_kwargs or {}).get(tracker.name, {})
            tracker.start(project_name, self.logging_dir, **settings)
            self.trackers.append(tracker)
            if config is not None:
                tracker.store_init_configuration(config)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """The tracker of this name; ranks that do not write get one that does nothing.

        Parameters
        ----------
        name : str
            The tracker's name.
        unwrap : bool
            Give what it writes with: TensorBoard's writer, wandb's run.

        Raises
        ------
        ValueError
            There is none of this name.

        Examples
        --------
        >>> accelerator = Accelerator(log_with="jsonl", project_dir="runs")
        >>> accelerator.init_trackers("digits")
        >>> accelerator.get_tracker("jsonl").name
        'jsonl'
        >>> accelerator.end_training()
        """
        names = [tracker.name for tracker in self._log_with]
        if name not in names:
            raise ValueError(f"there is no tracker {name!r}; there are {names}")
        if not self.state.is_main_process:
            return NoTracker()
        for tracker in self.trackers:
            if tracker.name == name:
                return tracker.tracker if unwrap else tracker
        raise ValueError(f"tracker {name!r} has not begun; call init_trackers(project_name) first")

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Write values in every place of ``log_with``: the main process's; the others' go nowhere.

        Parameters
        ----------
        values : dict
            Numbers, text, or dicts of numbers, by name. Tensors of one element count as numbers;
            wandb takes its own pictures and tables too.
        step : int, optional
            Which step they belong to.
        log_kwargs : dict, optional
            For each tracker's name, further keyword arguments, such as wandb's ``commit``.

        Examples
        --------
        >>> accelerator = Accelerator(log_with="jsonl", project_dir="runs")
        >>> accelerator.init_trackers("letters")
        >>> accelerator.log({"loss": torch.tensor(0.5)}, step=0)
        >>> accelerator.end_training()
        >>> print(open("runs/letters.jsonl").read())
        {"step": 0, "loss": 0.5}
        """
        numbers = {name: _number(value) for name, value in values.items()} if self.trackers else {}
        for tracker in self.trackers:
            tracker.log(numbers, step, **(log_kwargs or {}).get(tracker.name, {}))

    def end_training(self) -> None:
        """Finish the trackers and, where the launcher does not see to it, the process group.

        Examples
        --------
        >>> accelerator.end_training()
        """
        trackers, self.trackers = self.trackers, []
        for tracker in trackers:
            tracker.finish()
        self.state.wait_for_everyone()
        self.state.destroy_process_group()


def _tracker(given: Any) -> Tracker:
    if isinstance(given, Tracker):
        return given
    name = str(getattr(given, "value", given)).lower()
    if name not in _KNOWN:
        known = ", ".join(map(repr, (*_KNOWN, "all")))
        raise ValueError(f"log_with={given!r} is no tracker; choose of {known}, or give a Tracker")
    return _KNOWN[name]()


def _needed(directory: Path | None, name: str) -> Path:
    if directory is None:
        raise ValueError(f"log_with={name!r} writes files: give the Accelerator a project_dir")
    return directory


def _import(name: str, line: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"log_with={name!r} needs {name}: {line}") from error


def _number(value: Any) -> Any:
    """A value as trackers take it: numbers out of tensors and numpy's own, the rest as it is."""
    if isinstance(value, dict):
        return {name: _number(each) for name, each in value.items()}
    return value.item() if hasattr(value, "item") else value


def _plain(value: Any) -> Any:
    """What JSON has no word for: a number where it is one, else its text."""
    return value.item() if hasattr(value, "item") else str(value)
