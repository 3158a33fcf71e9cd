"""`raymine pack`: decode the images of a scene into the cache."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from .. import output


@dataclass(frozen=True)
class Pack:
    """Decode the images of a scene into the cache, so that training starts at once. `train` does so by itself."""

    scene: tyro.conf.Positional[str]
    """Scene folder, or `builtin`."""
    downscale: int = 1
    """Divide the size of every image by this."""
    json: bool = False
    """Print one JSON document on stdout: digests of the scene, of the images of each split and, where training images
    have depth maps, of these."""

    def execute(self) -> int:
        from raymine.errors import ConfigError
        from raymine.scenes import load_scene, scene_digest
        from raymine.scenes.bank import open_bank
        from raymine.scenes.depth import depth_digest, depth_digests

        if self.downscale < 1:
            raise ConfigError(f"--downscale must be a whole number of at least 1, got {self.downscale}.")
        scene = load_scene(self.scene, downscale=self.downscale)
        found: dict[str, object] = {"scene": self.scene, "scene_digest": scene_digest(scene)}
        total = 0
        for split in ("train", "val", "test"):
            frames = scene.of_split(split)
            found[split] = None
            if frames:
                with output.progress_bar(f"Packing {split} images") as progress:
                    bank = open_bank(scene, frames, progress=progress)
                with bank:
                    found[split] = bank.digest
                    total += bank.nbytes
        depth = depth_digest(depth_digests(scene, scene.of_split("train")))
        if depth is not None:
            found["depth"] = depth
        if self.json:
            output.emit_json({**found, "bytes": total})
        else:
            output.say(f"{len(scene.frames)} images are packed: {output.size(total)} in the cache (`raymine cache`).")
        return 0
