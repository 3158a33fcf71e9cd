"""raymine's step under a PyTorch Lightning `Trainer`, with a callback and a checkpoint.

    python examples/12_lightning.py [SCENE] [--steps 300] [--downscale 4] [--devices 1] [--out fitted]

Needs the extra `lightning`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from raymine.export import render_view
from raymine.lightning import RaymineData, RaymineModule
from raymine.scenes import load_scene


class Told(Callback):
    """Prints what the module logs at each validation."""

    def on_validation_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        score = trainer.callback_metrics.get("test_psnr")
        if score is not None and trainer.is_global_zero:
            print(f"step {trainer.global_step}: PSNR {float(score):.2f} dB on test views")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with Lightning.")
    parser.add_argument("scene", nargs="?", default="builtin")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--downscale", type=int, default=4)
    parser.add_argument("--devices", type=int, default=1, help="processes that share the rays of each step")
    parser.add_argument("--out", type=Path, default=Path("fitted"))
    options = parser.parse_args()

    data = RaymineData(options.scene, downscale=options.downscale, views=5)
    module = RaymineModule(data, recipe="ngp")
    trainer = Trainer(
        max_steps=options.steps,
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Told(), ModelCheckpoint(options.out, filename="last", every_n_train_steps=options.steps)],
    )
    trainer.fit(module, data)
    if not trainer.is_global_zero:
        # With several devices Lightning starts this program once for each of them.
        return

    # The renderer of the engine draws the model, as `Run.render` does for a run folder.
    scene = load_scene(options.scene, downscale=options.downscale)
    frame = scene.frames[scene.of_split("test")[0]]
    view = render_view(
        module.engine.renderer(),
        scene.cameras[frame.camera],
        frame.pose,
        scene.bounds,
        background=scene.background or (0.0, 0.0, 0.0),
        device=module.state.device,
    )
    view.save(options.out / "view.png")
    print(f"{view} is in {options.out / 'view.png'}; the checkpoint is {trainer.checkpoint_callback.best_model_path}")


if __name__ == "__main__":
    main()
