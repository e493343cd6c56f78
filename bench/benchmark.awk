# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# What the summaries of Google Benchmark's JSON files share.

function value_of(line) {
  sub(/^[^:]*: */, "", line)
  sub(/,$/, "", line)
  gsub(/"/, "", line)
  return line
}
function elements(name) {
  match(name, /n:[0-9]+/)
  return substr(name, RSTART + 2, RLENGTH - 2) + 0
}
