#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/nvcc_requires_implicit_this.sh
#
# nvcc 13.5.37 (13.0.88 does the same), with g++. A class template asks in a requires-expression whether a
# call compiles, and an argument of that call is a member function of the class, called without `this->`.
# The compiler for the device says no, the compiler for the host says yes. With `this->` both say yes.
# Under `if constexpr` the program then launches a kernel that was never compiled, without a warning: at run
# time cudaFuncGetAttributes and launches give cudaErrorInvalidDeviceFunction.
#
# Seen: the PTX has the kernel of the branch `no`, the program prints yes.
# Fails if both compilers take the same branch.
#
# Needs g++. Nothing is launched to its end, so no device is needed.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37 \
  nvidia-cuda-crt==13.5.37 nvidia-cuda-runtime==13.5.37 nvidia-cuda-cccl==13.3.5.0.6
toolkit=$(echo "$work"/venv/lib/python3*/site-packages/nvidia/cu13)
export PATH="$toolkit/bin:$PATH"

cat >"$work/asks.cu" <<'CUDA'
#include <cstdio>

struct yes {
  __host__ __device__ void operator()() const {}
};
struct no {
  __host__ __device__ void operator()() const {}
};
template <class K>
__global__ void run(K k) {
  k();
}
struct launcher {
  template <class K, class C>
  void launch(const C&) const {
    run<K><<<1, 1>>>(K{});
  }
};
struct context {};

template <class L>
class step {
 public:
  void go(const L& l) const {
    if constexpr (requires { l.template launch<yes>(THIS at()); }) {
      std::puts("yes");
      l.template launch<yes>(at());
    } else {
      std::puts("no");
      l.template launch<no>(at());
    }
  }

 private:
  context at() const { return {}; }
};

int main() { step<launcher>().go(launcher()); }
CUDA

# branches <definition of THIS>: "device host"
branches() {
  nvcc -std=c++20 -arch=compute_90 "-DTHIS=$1" -ptx "$work/asks.cu" -o "$work/asks.ptx"
  nvcc -std=c++20 -arch=compute_90 "-DTHIS=$1" --cuda -o "$work/asks.ii" "$work/asks.cu"
  g++ -std=c++20 -c -x c++ "$work/asks.ii" -o "$work/asks.o"
  local device=no host=no
  grep -q 'entry.*yes' "$work/asks.ptx" && device=yes
  nm -C "$work/asks.o" | grep -q ' W .*launcher::launch<yes' && host=yes
  echo "$device $host"
}

nvcc --version | grep release
implicit=$(branches "")
explicit=$(branches "this->")
echo "without this->: the device's compiler says ${implicit% *}, the host's ${implicit#* }"
echo "with this->:    the device's compiler says ${explicit% *}, the host's ${explicit#* }"
[[ "$implicit" == "no yes" && "$explicit" == "yes yes" ]]
