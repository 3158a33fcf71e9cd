"""`raymine eval`: evaluate the views of a trained run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from .. import output
from .opening import open_run

if TYPE_CHECKING:
    import torch

    from raymine.contracts import Split
    from raymine.evaluate import Evaluation, FitConfig, Lpips, LpipsChoice, PictureChoice
    from raymine.experiment import LoadedRun


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a trained run: PSNR, SSIM, LPIPS; pictures of prediction, truth, error, depth and opacity."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    split: Literal["test", "val", "train"] = "test"
    """The split whose images are compared."""
    views: int | None = None
    """Compare this many images, evenly spread over the split; all if not given."""
    pictures: Literal["all", "few", "none"] = "all"
    """Write pictures of `all` views, of a `few` (the first four) or of `none`. Those of an earlier evaluation are
    removed."""
    fit: Literal["poses", "exposure", "both"] | None = None
    """Also score the views after their poses, their exposures or both were fitted to their images, with the field
    frozen: 200 steps of 1024 pixels of each image (docs/poses.md). For runs with --refine-poses or --exposure."""
    lpips: Literal["alex", "vgg", "both"] | None = None
    """Also compute LPIPS 0.1 with AlexNet, VGG16 or both (docs/evaluation.md). The weights (64 MB) are downloaded once.
    On two cores, VGG16 takes 12 s for a view of 800x800."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The checkpoint to evaluate; `best` is selected by the views of `raymine train --hold-out`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to render on."""
    allow: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Package whose classes the run may use; importing it runs its code. Repeat it for more packages."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        started = time.perf_counter()
        loaded = open_run(self.run, checkpoint=self.checkpoint, device=self.device, allow=self.allow)
        from raymine.evaluate import FitConfig

        if self.fit is None and self.split != "train" and loaded.state.poses is not None:
            output.warn(
                "The training poses of this run were refined and the test poses were not, so these scores may be too "
                "low. `raymine eval --fit poses` also gives scores with fitted poses."
            )
        fit = None if self.fit is None else FitConfig(self.fit)
        folder = self.run / "eval" if self.split == "test" else self.run / f"eval-{self.split}"
        lpips = [] if self.lpips is None else open_lpips(self.lpips, loaded.device)
        evaluation = evaluate_run(
            loaded, self.split, folder, views=self.views, pictures=self.pictures, fit=fit, lpips=lpips
        )
        if self.json:
            output.emit_json({"run": str(self.run), "step": loaded.step, "split": self.split, **evaluation.to_json()})
        else:
            print_evaluation(evaluation, f"{self.run}, step {loaded.step}, {self.split} images")
        pictures = "" if self.pictures == "none" else f"Pictures: {folder / 'images'}   "
        output.say(f"{pictures}Scores: {folder / 'metrics.json'}")
        rendering = sum(view.seconds for view in evaluation.views)
        fitting = {} if evaluation.fitted is None else {"fitting": evaluation.fitted.seconds}
        output.took(
            time.perf_counter() - started,
            {**fitting, "rendering": rendering, "scores and pictures": evaluation.seconds - rendering},
        )
        return 0


def evaluate_run(
    loaded: LoadedRun,
    split: Split,
    folder: Path,
    *,
    views: int | None = None,
    pictures: PictureChoice = "all",
    fit: FitConfig | None = None,
    lpips: Sequence[Lpips] = (),
) -> Evaluation:
    """Evaluate a loaded run on one split. Progress goes to stderr, pictures and metrics.json to `folder`.

    fit: also score the views after they were fitted (`evaluate.fit`). lpips: networks of LPIPS to score with.
    """
    from raymine.experiment import choose_frames, score_frames
    from raymine.scenes.bank import open_bank

    frames = choose_frames(loaded.scene, split, views)
    with output.progress_bar("Reading images") as progress:
        images = open_bank(loaded.scene, frames, progress=progress)
    words = "Evaluating" if fit is None else "Fitting and evaluating"
    with images, output.progress_bar(words) as progress:
        return score_frames(
            loaded,
            frames,
            images,
            out=folder,
            pictures=pictures,
            progress=progress,
            fit=fit,
            fit_progress=progress,
            lpips=lpips,
        )


def open_lpips(choice: LpipsChoice, device: torch.device) -> list[Lpips]:
    """The networks of a choice; none, and a warning, if weights are missing. The other scores need no weights."""
    from raymine.evaluate.lpips import WeightsUnavailable, chosen_nets, load_lpips

    try:
        return [load_lpips(net, device, on_fetch=_say_download) for net in chosen_nets(choice)]
    except WeightsUnavailable as error:
        output.warn(f"No LPIPS: {error.message} {error.hint}")
        return []


def _say_download() -> None:
    output.say("Downloading the weights of LPIPS (64 MB, once)")


def print_evaluation(evaluation: Evaluation, title: str) -> None:
    """Print the table of scores on stdout, with the mean as the last row; scores after fitting in a second table."""
    _print_scores(evaluation, title if evaluation.fitted is None else f"{title}, without fitting")
    fitted = evaluation.fitted
    if fitted is not None:
        what = {"poses": "poses", "exposure": "exposure", "both": "poses and exposure"}[fitted.config.what]
        how = f"{fitted.config.steps} steps of {fitted.config.pixels} pixels of each image"
        _print_scores(fitted.evaluation, f"{title}, after fitting {what} ({how})")
    if evaluation.protocol is not None:
        output.results().print(evaluation.protocol.sentence(), markup=False, soft_wrap=True)


def _print_scores(evaluation: Evaluation, title: str) -> None:
    names = {"alex": "LPIPS (Alex)", "vgg": "LPIPS (VGG)"}
    lpips = evaluation.lpips
    columns = ("PSNR (dB)", "SSIM", *(names[net] for net in lpips), "seconds")
    rows = [
        (
            view.name,
            output.number(view.psnr),
            output.number(view.ssim, 4),
            *(output.number(view.lpips[net], 4) for net in lpips),
            f"{view.seconds:.2f}",
        )
        for view in evaluation.views
    ]
    seconds = sum(view.seconds for view in evaluation.views) / max(1, len(evaluation.views))
    made = output.table(title, ("image", *columns), rows, right=columns)
    made.add_section()
    means = (output.number(evaluation.psnr), output.number(evaluation.ssim, 4))
    made.add_row("mean", *means, *(output.number(value, 4) for value in lpips.values()), f"{seconds:.2f}")
    output.results().print(made)
