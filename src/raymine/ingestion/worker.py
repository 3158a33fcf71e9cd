"""The steps of COLMAP, each in a process of its own: `python -m raymine.ingestion.worker STEP`.

On stdin: a job as a line of JSON. Its result goes to the file `result`. COLMAP writes to stderr. Jobs have `database`,
`images` (a folder), `threads`, and what a step needs besides.

Nothing here opens the database with Python's own SQLite: two copies of SQLite in one process break each other's locks.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raymine.files import JSON

Job = dict[str, Any]
_SEED = 0
BLOCK = 8
"""Photos of a block of pairs: COLMAP stores matches after each block, so less is lost when it is stopped."""
_OVERLAP = 12
_SMALLEST_MODEL = 3
_LOSS_PIXELS, _LARGEST_ERRORS, _SMALLEST_ANGLE, _FEWEST_POINTS = 0.25, (1.0, 0.75), 1.5, 30
"""Of the last adjustments: scale of the loss, errors of a point and angle between its rays (degrees) beyond which it is
left out, and points below which a photo is."""
_LONG_TRACK, _ENOUGH_POINTS = 4, 60
"""Photos that agree on a point which counts as sure, and such points with which a photo can do without others."""
_MOST_FEATURES = 4096
"""Of a picture. Matching takes time with the square of it."""
_FAINTEST = 0.002
"""Contrast of a feature, of which COLMAP asks 0.0067: smooth things and small pictures have few stronger ones."""


def features(job: Job) -> JSON:
    """Find features in all pictures. Those that have some already are left as they are."""
    import pycolmap

    with pycolmap.Database.open(job["database"]) as database:
        for number, group in enumerate(job["groups"], start=1):
            if not database.exists_camera(number):
                focal = group["focal"] or 1.2 * max(group["width"], group["height"])
                camera = pycolmap.Camera.create_from_model_name(
                    number, group["model"], focal, group["width"], group["height"]
                )
                camera.has_prior_focal_length = group["focal"] is not None
                database.write_camera(camera, use_camera_id=True)
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.max_image_size, extraction.num_threads, extraction.use_gpu = job["feature_size"], job["threads"], False
    extraction.sift.max_num_features = _MOST_FEATURES
    extraction.sift.estimate_affine_shape = extraction.sift.domain_size_pooling = job["robust"]
    if job["robust"]:
        extraction.sift.peak_threshold = _FAINTEST
    for number, group in enumerate(job["groups"], start=1):
        reader = pycolmap.ImageReaderOptions()
        reader.existing_camera_id = number
        pycolmap.extract_features(
            job["database"],
            job["images"],
            image_names=group["names"],
            reader_options=reader,
            extraction_options=extraction,
        )
    with pycolmap.Database.open(job["database"]) as database:
        return {image.name: database.num_keypoints_for_image(image.image_id) for image in database.read_all_images()}


def matches(job: Job) -> JSON:
    """Match pairs of pictures. Pairs that were matched already are skipped. Returns inliers of pairs, by names."""
    import pycolmap

    matching = pycolmap.FeatureMatchingOptions()
    matching.num_threads, matching.use_gpu, matching.guided_matching = job["threads"], False, job["robust"]
    verification = pycolmap.TwoViewGeometryOptions()
    verification.ransac.random_seed = _SEED
    pairing: Any
    match: Any
    if job["matching"] == "exhaustive":
        pairing = pycolmap.ExhaustivePairingOptions()
        pairing.block_size = BLOCK
        match = pycolmap.match_exhaustive
    else:
        pairing = pycolmap.SequentialPairingOptions()
        pairing.overlap, pairing.quadratic_overlap = _OVERLAP, True
        match = pycolmap.match_sequential
    match(job["database"], matching_options=matching, pairing_options=pairing, verification_options=verification)
    with pycolmap.Database.open(job["database"]) as database:
        names = {image.image_id: image.name for image in database.read_all_images()}
        pair_ids, inliers = database.read_two_view_geometry_num_inliers()
    found = []
    for pair, count in zip(pair_ids, inliers, strict=True):
        first, second = pycolmap.pair_id_to_image_pair(pair)
        if count:
            found.append([names[first], names[second], int(count)])
    return found


def mapping(job: Job) -> JSON:
    """Compute poses. Writes the model with the most pictures to `model`; returns what each model has."""
    import pycolmap

    pycolmap.set_random_seed(_SEED)
    work = Path(job["work"])
    if job["mapper"] == "global":
        wide = pycolmap.GlobalPipelineOptions()
        wide.num_threads, wide.min_model_size, wide.random_seed = job["threads"], _SMALLEST_MODEL, _SEED
        models = pycolmap.global_mapping(job["database"], job["images"], str(work), options=wide)
    else:
        options = pycolmap.IncrementalPipelineOptions()
        options.num_threads, options.min_model_size, options.random_seed = job["threads"], _SMALLEST_MODEL, _SEED
        models = pycolmap.incremental_mapping(job["database"], job["images"], str(work), options=options)
    ordered = sorted(models.values(), key=lambda model: (model.num_reg_images(), model.num_points3D()), reverse=True)
    if ordered and ordered[0].num_reg_images() >= _SMALLEST_MODEL:
        _refine(ordered[0], job["pixel"], job["threads"])
        ordered[0] = _with_points(ordered[0], job)
        ordered[0].write(job["model"])
    return [_summary(model) for model in ordered]


def undistort(job: Job) -> JSON:
    """Write pictures without lens distortion, and their model, below `out`."""
    import pycolmap

    pycolmap.undistort_images(job["out"], job["model"], job["images"], jpeg_quality=95, num_threads=job["threads"])
    return True


def place(job: Job) -> JSON:
    """Move the model by the similarity `matrix` [4, 4], in place."""
    import numpy as np
    import pycolmap

    matrix = np.array(job["matrix"])
    scale = float(np.cbrt(np.linalg.det(matrix[:3, :3])))
    model = pycolmap.Reconstruction(job["model"])
    model.transform(pycolmap.Sim3d(scale, pycolmap.Rotation3d(matrix[:3, :3] / scale), matrix[:3, 3]))
    model.write(job["model"])
    return True


STEPS: dict[str, Callable[[Job], JSON]] = {
    "features": features,
    "matches": matches,
    "mapping": mapping,
    "undistort": undistort,
    "place": place,
}


def _refine(model: Any, pixel: float, threads: int) -> None:
    """Adjust the model to points that many photos agree on, with a loss on which outliers have little effect.

    Matches of repeated patterns that two or three photos agree on by chance pull their poses away. So points of short
    tracks are left out where their photos have enough others, then points with large errors, and the rest is adjusted
    again. Photos that see few points in the end have no pose. pixel: of the pictures in which features were found, in
    pixels of the photos.
    """
    import pycolmap

    for largest in _LARGEST_ERRORS:
        _drop_short_tracks(model)
        _adjust(model, pixel, threads)
        pycolmap.ObservationManager(model).filter_all_points3D(largest * pixel, _SMALLEST_ANGLE)
    weak = [number for number in model.reg_image_ids() if model.image(number).num_points3D < _FEWEST_POINTS]
    if model.num_reg_images() - len(weak) >= _SMALLEST_MODEL:
        for number in weak:
            model.deregister_frame(model.image(number).frame_id)
    _drop_short_tracks(model)
    _adjust(model, pixel, threads)


def _with_points(model: Any, job: Job) -> Any:
    """The model with new points from all matches that its poses explain; poses and lenses stay."""
    import pycolmap

    found = pycolmap.triangulate_points(model, job["database"], job["images"], job["work"])
    pycolmap.ObservationManager(found).filter_all_points3D(_LARGEST_ERRORS[0] * job["pixel"], _SMALLEST_ANGLE)
    return found


def _adjust(model: Any, pixel: float, threads: int) -> None:
    import pycolmap

    options = pycolmap.BundleAdjustmentOptions()
    options.ceres.loss_function_type = pycolmap.LossFunctionType.CAUCHY
    options.ceres.loss_function_scale = _LOSS_PIXELS * pixel
    options.ceres.solver_options.num_threads = threads
    pycolmap.bundle_adjustment(model, options)


def _drop_short_tracks(model: Any) -> None:
    """Remove points that fewer than `_LONG_TRACK` photos see, if each of these has enough points that more see."""
    seen_by = {
        number: {element.image_id for element in point.track.elements} for number, point in model.points3D.items()
    }
    long = Counter(image for images in seen_by.values() if len(images) >= _LONG_TRACK for image in images)
    for number, images in seen_by.items():
        if len(images) < _LONG_TRACK and all(long[image] >= _ENOUGH_POINTS for image in images):
            model.delete_point3D(number)


def _summary(model: Any) -> JSON:
    images = [model.image(number) for number in model.reg_image_ids()]
    return {
        "points": model.num_points3D(),
        "error": float(model.compute_mean_reprojection_error()),
        "images": {image.name: int(image.num_points3D) for image in images},
        "cameras": [
            {
                "model": str(camera.model_name),
                "width": camera.width,
                "height": camera.height,
                "params": [float(value) for value in camera.params],
            }
            for camera in model.cameras.values()
        ],
    }


def _end_with_caller() -> None:
    """End this process when stdin ends: the process that started it was killed."""
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_caller, daemon=True).start()
    Path(job["result"]).write_text(json.dumps(STEPS[sys.argv[1]](job)))
    # Not by returning: threads of COLMAP and the one above would have to be waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
