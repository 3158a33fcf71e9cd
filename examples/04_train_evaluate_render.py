"""Train, score and render from Python.

    python examples/04_train_evaluate_render.py [SCENE] [--steps 300] [--downscale 4] [--out first_run]

SCENE is a folder of posed photos, or the word `builtin`. OUT gets the run, a view from above, and frames of an orbit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import raymine
from raymine.export import orbit


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, score and render from Python.")
    parser.add_argument("scene", nargs="?", default="builtin")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--downscale", type=int, default=4)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("first_run"))
    options = parser.parse_args()

    run = raymine.train(options.scene, steps=options.steps, downscale=options.downscale, out=options.out / "run")

    # Test views were not trained on. Their pictures are written beside the scores.
    scores = run.evaluate(views=5, out=options.out / "scores")
    for view in scores.views:
        print(f"{view.name}: {view.psnr:.2f} dB, SSIM {view.ssim:.3f}")
    print(f"PSNR {scores.psnr:.2f} dB over {len(scores.views)} test views")

    # A camera at a position that looks at a target, both in the coordinates of the scene's own files.
    above = run.render(run.camera_at(position=(2.5, 2.5, 2.5), target=(0.0, 0.0, 0.0), size=(200, 150)))
    above.save(options.out / "above.png")
    above.save(options.out / "above_depth.png", kind="depth")
    print(f"above.png: {above.colour.shape}, mean opacity {above.opacity.mean():.2f}")

    # A path is a list of cameras and poses; each pose is rendered by itself.
    path = orbit(run.scene, options.frames, size=(100, 100))
    for number, (camera, pose) in enumerate(zip(path.cameras, path.poses, strict=True)):
        run.render(camera, pose).save(options.out / f"orbit_{number:02d}.png")
    print(f"{len(path)} frames of an orbit are in {options.out}")

    # The folder is all that is needed later, on this machine or another that has the scene.
    again = raymine.load(options.out / "run")
    print(f"opened again: step {again.step}, recipe {again.config.recipe}, device {again.device}")


if __name__ == "__main__":
    main()
