# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# For a Spack repository, as packages/onebit/package.py. From a checkout of onebit:
# spack dev-build onebit@main

from spack.package import *


class Onebit(CMakePackage):
    """Distributed optimizers that communicate one bit per parameter."""

    license("Apache-2.0")

    version("main", branch="main")

    variant("mpi", default=True, description="Bring the MPI that onebit::mpi is to be built with")
    variant("cuda", default=False, description="Bring the toolkit for onebit::cuda")

    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("mpi", when="+mpi")
    depends_on("cuda@12:", when="+cuda")

    conflicts("%gcc@:10")
    conflicts("%clang@:13")

    def cmake_args(self):
        return [
            self.define(name, False)
            for name in (
                "ONEBIT_BUILD_TESTS",
                "ONEBIT_BUILD_BENCH",
                "ONEBIT_BUILD_EXAMPLES",
                "ONEBIT_CUDA",
            )
        ]
