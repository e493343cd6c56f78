# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
"""What DeepSpeed's 1-bit optimizers use of CuPy, over NumPy: they ask for CuPy on the CPU too."""

from types import SimpleNamespace

import torch
from numpy import packbits, split, unpackbits, zeros  # noqa: F401


def from_dlpack(capsule):
    return torch.utils.dlpack.from_dlpack(capsule).numpy()


class _Device:

    def __init__(self, _):
        pass

    def use(self):
        pass


cuda = SimpleNamespace(Device=_Device,
                       get_current_stream=lambda: SimpleNamespace(synchronize=lambda: None))
