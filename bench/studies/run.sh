#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   bench/studies/run.sh ablations | long_language_model | noise | outer_steps | roofline | tasks [arguments]
#
# Builds the study in build/examples, after installing what is missing for it, and runs it. All further
# arguments go to the program: see bench/studies/run.sh tasks --help
set -euo pipefail
[[ -d "$(dirname "${BASH_SOURCE[0]}")/${1:-none}" ]] || { sed -n 's/^#   /usage: /p' "${BASH_SOURCE[0]}" >&2; exit 2; }
exec "$(dirname "${BASH_SOURCE[0]}")/../../examples/run.sh" "$@"
