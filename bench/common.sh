# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# For the scripts of the benchmarks, which source it.

# install_missing <package>...: installs what is not there, as root or through sudo; else prints the
# line to run. Where there are no Debian packages it does nothing: whatever is missing is named later.
install_missing() {
  command -v dpkg-query >/dev/null || return 0
  local package missing=()
  for package in "$@"; do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] ||
      missing+=("$package")
  done
  ((${#missing[@]})) || return 0

  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get)
  if ((EUID != 0)); then
    if ! sudo -n true 2>/dev/null; then
      echo "run this first: sudo apt-get update && sudo apt-get install -y ${missing[*]}" >&2
      exit 1
    fi
    apt=(sudo "${apt[@]}")
  fi
  "${apt[@]}" update
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}"
}

# bits_of <rate>: bits per second of a rate as tc writes it, 100mbit; nothing if it is none.
bits_of() {
  awk -v rate="$1" 'BEGIN {
    if (rate !~ /^[0-9.]+[kmg]bit$/) exit
    unit = substr(rate, length(rate) - 3, 1)
    printf "%.0f", rate * (unit == "k" ? 1e3 : unit == "m" ? 1e6 : 1e9)
  }'
}

# summarise <folder> <json or nothing> <awk program>: the table of the figures that matter, out of the
# files of Google Benchmark in the folder, and all of them in one file. Google Benchmark writes one
# key per line, so awk is all that is needed.
summarise() {
  local file first=1 files=()
  for file in "$1"/*.json; do
    if [[ -s "$file" ]] && grep -q '"name"' "$file"; then files+=("$file"); fi
  done
  if ((${#files[@]} == 0)); then
    echo "no benchmark was run"
    return
  fi
  if [[ -n "$2" ]]; then
    { # the context of the first file, the benchmarks of all
      sed '/"benchmarks": \[/q' "${files[0]}"
      for file in "${files[@]}"; do
        ((first)) || echo "    ,"
        first=0
        awk '/^  \]/ { inside = 0 } inside; /"benchmarks": \[/ { inside = 1 }' "$file"
      done
      printf '  ]\n}\n'
    } >"$2"
  fi
  cat "${files[@]}" | awk -f bench/benchmark.awk -f "$3"
}
