# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# What the summaries of Google Benchmark's JSON files share: the members of a result are in v[key], and
# its name in `name`, when flush_one, the summary's own function, is called.

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
/"name":/ { flush_one(); delete v; name = value_of($0) }
/^ *"[a-z_0-9]+":/ {
  key = $0
  sub(/^ *"/, "", key)
  sub(/".*/, "", key)
  v[key] = value_of($0)
}
