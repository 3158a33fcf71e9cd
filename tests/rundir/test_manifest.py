"""The manifest: what it says of the machine."""

from __future__ import annotations

import json

import torch

from raymine.rundir import describe_environment


def test_the_environment_names_versions_and_device() -> None:
    found = describe_environment(torch.device("cpu"))
    assert found.packages["torch"] == torch.__version__.split("+")[0] or found.packages["torch"] == torch.__version__
    assert found.device.startswith("cpu: ")
    assert found.threads == torch.get_num_threads()
    assert found.commit is None or len(found.commit.removesuffix("-dirty")) == 40
    json.dumps(found.packages)
