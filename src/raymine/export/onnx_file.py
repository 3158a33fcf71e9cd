"""ONNX of a hash-grid field: positions and directions -> pre-activations of colour and density.

The graph is built by hand, with all levels and all corners of a cell in one tensor each: about fifty nodes. Symbols: n
points, L levels, F features, c the 8 corners of a cell. Rows of the table are computed in int64, as in the reference of
the hash grid.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.errors import MissingExtraError
from raymine.files import atomic_file

from .model import ExportModel
from .snapshot import description_of, hash_field, probes, tensors_of

_OPSET = 18
_PRIMES = (1, 2654435761, 805459861)
_STEP = "raymine.step"
_POINTS = 1 << 14
"""Points that are evaluated at a time: the corners of all cells of a point take a few KB in each node."""


def require(module: str) -> Any:
    """Import a package of the extra `onnx`, or raise `MissingExtraError`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(module, "onnx", "Exporting ONNX") from error


class _Graph:
    """Nodes and constants of a graph under construction. Values are named by the order of their nodes."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: np.ndarray | np.floating) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def add(self, op: str, *inputs: str, name: str = "", **attributes: int) -> str:
        made = name or f"v{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(op, list(inputs), [made], **attributes))
        return made

    def sum_last(self, value: str) -> str:
        return self.add("ReduceSum", value, self.constant(np.array([-1])), keepdims=0)


def build(model: ExportModel) -> Any:
    """The ONNX model, with inputs `positions`, `directions` [n, 3] and outputs `colour` [n, 3], `density` [n]."""
    onnx = require("onnx")
    hash_field(model, "An ONNX file")
    about = description_of(model)
    tensors = {name: value.numpy() for name, value in tensors_of(model, short=False).items()}
    graph = _Graph(onnx)
    hidden = _encoding(graph, _unit_cube(graph, about), about["levels"], tensors["table"])
    for i in range(about["density_layers"]):
        hidden = graph.add("MatMul", hidden, graph.constant(tensors[f"density.{i}"]))
        hidden = graph.add("Relu", hidden) if i + 1 < about["density_layers"] else hidden
    graph.add("Gather", hidden, graph.constant(np.array(0)), name="density", axis=1)
    hidden = graph.add("Concat", hidden, _harmonics(graph, about["bands"]), axis=1)
    for i in range(about["colour_layers"]):
        last = i + 1 == about["colour_layers"]
        weight = graph.constant(tensors[f"colour.{i}"])
        hidden = graph.add("MatMul", hidden, weight, name="colour" if last else "")
        hidden = hidden if last else graph.add("Relu", hidden)
    kind, value = onnx.TensorProto.FLOAT, onnx.helper.make_tensor_value_info
    inputs = [value(name, kind, ["n", 3]) for name in ("positions", "directions")]
    outputs = [value("colour", kind, ["n", 3]), value("density", kind, ["n"])]
    made = onnx.helper.make_graph(graph.nodes, "raymine", inputs, outputs, graph.constants)
    opset = [onnx.helper.make_opsetid("", _OPSET)]
    whole = onnx.helper.make_model(made, opset_imports=opset, ir_version=9, producer_name="raymine")
    if model.step is not None:
        onnx.helper.set_model_props(whole, {_STEP: str(model.step)})
    return whole


def _unit_cube(graph: _Graph, about: dict[str, Any]) -> str:
    """Positions [n, 3] in the unit cube; those of an unbounded scene are contracted."""
    low, high = (np.array(about[side], np.float32) for side in ("low", "high"))
    if not about["unbounded"]:
        moved = graph.add("Sub", "positions", graph.constant(low))
        return graph.add("Div", moved, graph.constant(high - low))
    one, two = graph.constant(np.float32(1)), graph.constant(np.float32(2))
    moved = graph.add("Sub", "positions", graph.constant((low + high) * np.float32(0.5)))
    scaled = graph.add("Mul", moved, graph.constant(np.float32(2) / (high - low)))
    largest = graph.add("ReduceMax", graph.add("Abs", scaled), graph.constant(np.array([-1])), keepdims=1)
    norm = graph.add("Max", largest, one)
    factor = graph.add("Div", graph.add("Sub", two, graph.add("Div", one, norm)), norm)
    quarter = graph.add("Mul", graph.add("Mul", scaled, factor), graph.constant(np.float32(0.25)))
    return graph.add("Add", quarter, graph.constant(np.float32(0.5)))


def _encoding(graph: _Graph, unit: str, levels: list[dict[str, Any]], table: np.ndarray) -> str:
    """Positions in 0..1 [n, 3] -> features [n, L * F]."""

    def of_levels(key: str, kind: type = np.int64) -> np.ndarray:
        return np.array([level[key] for level in levels], kind)[:, None]  # [L, 1]

    bits = np.array([[corner & 1, corner >> 1 & 1, corner >> 2] for corner in range(8)])  # [c, 3]
    wide = graph.add("Unsqueeze", unit, graph.constant(np.array([1, 2])))  # [n, 1, 1, 3]
    scaled = graph.add("Mul", wide, graph.constant(of_levels("scale", np.float32)[:, None]))  # [n, L, 1, 3]
    at = graph.add("Add", scaled, graph.constant(np.float32(0.5)))
    floor = graph.add("Floor", at)
    fraction = graph.add("Sub", at, floor)
    # The weight of a corner is the product of f or 1 - f over the axes: (1 - b) + (2 b - 1) f.
    slope = graph.add("Mul", fraction, graph.constant((2 * bits - 1).astype(np.float32)))
    each = graph.add("Add", slope, graph.constant((1 - bits).astype(np.float32)))
    weight = graph.add("ReduceProd", each, graph.constant(np.array([-1])), keepdims=1)  # [n, L, c, 1]
    cell = graph.add("Add", graph.add("Cast", floor, to=7), graph.constant(bits.astype(np.int64)))  # [n, L, c, 3]
    sides = of_levels("resolution")
    strides = np.concatenate((np.ones_like(sides), sides, sides**2), 1)[:, None]  # [L, 1, 3]
    dense = graph.sum_last(graph.add("Mul", cell, graph.constant(strides)))
    mixed = graph.add("Mul", cell, graph.constant(np.array(_PRIMES, np.int64)))
    mixed = graph.add("BitwiseAnd", mixed, graph.constant(np.array(0xFFFFFFFF, np.int64)))
    x, y, z = (graph.add("Gather", mixed, graph.constant(np.array(axis)), axis=3) for axis in range(3))
    hashed = graph.add("BitwiseXor", graph.add("BitwiseXor", x, y), z)
    row = graph.add("Where", graph.constant(of_levels("dense", np.bool_)), dense, hashed)  # [n, L, c]
    row = graph.add("Mod", row, graph.constant(of_levels("entries")))
    row = graph.add("Add", row, graph.constant(of_levels("offset")))
    values = graph.add("Mul", weight, graph.add("Gather", graph.constant(table), row, axis=0))  # [n, L, c, F]
    total = graph.add("ReduceSum", values, graph.constant(np.array([2])), keepdims=0)
    return graph.add("Reshape", total, graph.constant(np.array([-1, len(levels) * table.shape[1]])))


def _harmonics(graph: _Graph, bands: int) -> str:
    """Spherical harmonics [n, bands^2] of the directions, as polynomials: products of powers times a matrix.

    The matrix is fitted to `raymine.kernels.harmonics` on fixed directions, which is exact up to rounding.
    """
    from raymine.kernels.harmonics.op import harmonics

    powers = [(i, j, k) for i in range(bands) for j in range(bands) for k in range(2) if i + j + k < bands]
    drawn = torch.randn(400, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    samples = torch.nn.functional.normalize(drawn, dim=-1)
    monomials = torch.stack([(samples ** torch.tensor(power)).prod(1) for power in powers], 1)
    matrix = torch.linalg.lstsq(monomials, harmonics(samples, bands)).solution.float().numpy()
    wide = graph.add("Unsqueeze", "directions", graph.constant(np.array([1])))
    # x^0 is 1 for every x in ONNX, as in torch.
    raised = graph.add("Pow", wide, graph.constant(np.array(powers, np.float32)))
    product = graph.add("ReduceProd", raised, graph.constant(np.array([-1])), keepdims=0)
    return graph.add("MatMul", product, graph.constant(matrix))


def write_onnx(path: Path, model: ExportModel) -> None:
    """Build, check and write the ONNX file of a model."""
    onnx = require("onnx")
    made = build(model)
    onnx.checker.check_model(made, full_check=True)
    with atomic_file(path, "write the ONNX file") as file:
        file.write(made.SerializeToString())


class OnnxField:
    """A written file, evaluated by ONNX Runtime on the CPU. step: of the checkpoint that it was made of, if known."""

    def __init__(self, path: Path) -> None:
        """`ValueError` if the file is not one of a field."""
        try:
            runtime = importlib.import_module("onnxruntime")
        except ImportError as error:
            raise MissingExtraError("onnxruntime", "onnx", "Rendering an ONNX file") from error
        try:
            self._session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:  # the package has many kinds of errors, without a common one of its own
            raise ValueError(str(error)) from error
        values = (*self._session.get_inputs(), *self._session.get_outputs())
        if [value.name for value in values] != ["positions", "directions", "colour", "density"]:
            raise ValueError("it is not the ONNX file of a field")
        step = self._session.get_modelmeta().custom_metadata_map.get(_STEP, "")
        self.step = int(step) if step.isdecimal() else None

    def density(self, positions: Tensor) -> Tensor:
        """Positions [n, 3] -> density [n] before activation, on the device of the positions."""
        return self(positions, torch.zeros_like(positions))[1]

    def __call__(self, positions: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Positions and unit directions [n, 3] -> pre-activations of colour [n, 3] and density [n]."""
        colour, density = positions.new_empty(len(positions), 3), positions.new_empty(len(positions))
        for start in range(0, len(positions), _POINTS):
            at = slice(start, start + _POINTS)
            feed = {"positions": positions[at].cpu().numpy(), "directions": directions[at].cpu().numpy()}
            found = self._session.run(["colour", "density"], feed)
            colour[at], density[at] = (torch.from_numpy(value) for value in found)
        return colour, density


def check_onnx(path: Path, model: ExportModel) -> float:
    """Run a written file; the largest difference of a pre-activation from the model."""
    points, directions = probes(model, 4096)
    feed = {"positions": points.numpy(), "directions": directions.numpy()}
    try:
        runtime = importlib.import_module("onnxruntime")
        found = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(["colour", "density"], feed)
    except ImportError:
        reference = require("onnx.reference")
        found = reference.ReferenceEvaluator(str(path)).run(["colour", "density"], feed)
    ours = model.output(points, directions)
    return max(float(np.abs(a.cpu().numpy() - b).max()) for a, b in zip(ours, found, strict=True))
