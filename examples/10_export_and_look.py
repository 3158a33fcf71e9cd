"""Export a mesh and Gaussian splats of a run, open both files, and draw them beside the model.

    python examples/10_export_and_look.py [SCENE] [--steps 400] [--downscale 2] [--out exported]

Needs the extra `mesh`. OUT/compare.png shows, from left to right, the model, the splats and the mesh.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import trimesh
from PIL import Image

import raymine
from raymine.export.splats.rasterise import rasterise
from raymine.export.splats.record import read_splats
from raymine.pictures import to_uint8


def draw_points(points: np.ndarray, colours: np.ndarray, camera: raymine.Camera, pose: np.ndarray) -> np.ndarray:
    """[H, W, 3] uint8: points [n, 3] with colours [n, 3] uint8, the nearest on top, over white."""
    local = (points - pose[:, 3]) @ pose[:, :3]
    order = np.argsort(local[:, 2])  # far ones first: the camera looks along -z
    x = np.round(camera.cx - camera.fx * local[:, 0] / local[:, 2] - 0.5).astype(int)
    y = np.round(camera.cy + camera.fy * local[:, 1] / local[:, 2] - 0.5).astype(int)
    order = order[((x >= 0) & (x < camera.width) & (y >= 0) & (y < camera.height))[order]]
    picture = np.full((camera.height, camera.width, 3), 255, np.uint8)
    picture[y[order], x[order]] = colours[order]
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description="Export a mesh and splats, and look at them.")
    parser.add_argument("scene", nargs="?", default="builtin")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--downscale", type=int, default=2)
    parser.add_argument("--faces", type=int, default=20_000)
    parser.add_argument("--count", type=int, default=20_000, help="splats")
    parser.add_argument("--resolution", type=int, default=128, help="of the grid that the mesh is taken from")
    parser.add_argument("--longest", type=int, default=400, help="side of the views that splats are taken from")
    parser.add_argument("--out", type=Path, default=Path("exported"))
    options = parser.parse_args()
    run = raymine.train(options.scene, steps=options.steps, downscale=options.downscale, out=options.out / "run")

    mesh = run.export(options.out / "mesh.glb", resolution=options.resolution, faces=options.faces, texture=512)
    look = {"count": options.count, "longest": options.longest, "refine": 0}
    splats = run.export(options.out / "splats.ply", format="splats", **look)
    for report in (mesh, splats):
        print(f"{report.files[0].name}: {report.size / 1e6:.1f} MB. {' '.join(report.sentences)}")

    frame = run.scene.frames[0]
    camera = run.scene.cameras[frame.camera]
    model = to_uint8(run.render(frame, background="white").colour)
    # Files are in the scene's own coordinates, so the cameras of the scene's files see them.
    pose = run.from_normalised(frame.pose)
    drawn = rasterise(read_splats(options.out / "splats.ply"), camera, pose).over((1.0, 1.0, 1.0))
    surface = trimesh.load(options.out / "mesh.glb", force="mesh")
    surface.visual.material = surface.visual.material.to_simple()  # whose texture can be sampled
    points, _, colours = trimesh.sample.sample_surface(surface, 200_000, sample_color=True, seed=0)
    seen = draw_points(np.asarray(points), np.asarray(colours)[:, :3], camera, pose)
    Image.fromarray(np.hstack((model, to_uint8(drawn.numpy()), seen))).save(options.out / "compare.png")
    print(f"{options.out / 'compare.png'} shows the model, the splats and the mesh")


if __name__ == "__main__":
    main()
