# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Proves that pages.cmake passes pages that are true and finds each kind of breach, by breaking a small
# tree in one place at a time.
#
#   cmake -DWORK_DIR=<scratch folder> -P pages_self_test.cmake

cmake_minimum_required(VERSION 3.25)

function(write_good_tree)
  file(REMOVE_RECURSE "${WORK_DIR}")
  file(WRITE "${WORK_DIR}/CMakeLists.txt" "option(ONEBIT_CUDA) # onebit::cuda\n")
  file(WRITE "${WORK_DIR}/include/onebit/core/error.hpp" "throw(\"no \"\n    \"rank \", 1, \" here\");\n")
  file(WRITE "${WORK_DIR}/examples/a.cpp"
       "int main() {\n  // [ab]\n  a[0] = 1;\n    b();\n  // [/ab]\n}\n")
  file(WRITE "${WORK_DIR}/README.md" "# Top\n\n[guide](docs/README.md)\n")
  file(WRITE "${WORK_DIR}/docs/README.md"
       "# Index\n\n[a](a.md#two-words), [faults](faults.md), [web](https://x.y), `[f](x)`\n")
  file(WRITE "${WORK_DIR}/docs/a.md"
       "# A\n\n## Two words!\n\n```cpp\na[0] = 1;\n  b();\n```\n\n`examples/a.cpp`\n\n"
       "```cmake\ntarget_link_libraries(x onebit::cuda)\n```\n\n```sh\n./examples/a.cpp # run\n```\n")
  file(WRITE "${WORK_DIR}/docs/faults.md"
       "# F\n\n| message | m |\n|---|---|\n| `no rank ` | x |\n")
endfunction()

function(check what expected)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" "-DSOURCE_DIR=${WORK_DIR}" -P "${CMAKE_CURRENT_LIST_DIR}/pages.cmake"
    RESULT_VARIABLE rc OUTPUT_VARIABLE out ERROR_VARIABLE out)
  string(REGEX REPLACE "[ \n]+" " " out "${out}") # CMake wraps long messages
  string(FIND "${out}" "${expected}" at)
  if(expected STREQUAL "" AND rc EQUAL 0)
    message(STATUS "${what}: passes, as it must")
  elseif(NOT expected STREQUAL "" AND NOT rc EQUAL 0 AND NOT at EQUAL -1)
    message(STATUS "${what}: found")
  else()
    message(SEND_ERROR "${what}: wanted '${expected}', got status ${rc} and: ${out}")
  endif()
endfunction()

# what, file to append to, text, message
function(check_breach what file text expected)
  write_good_tree()
  file(APPEND "${WORK_DIR}/${file}" "${text}")
  check("${what}" "${expected}")
endfunction()

set(a docs/a.md)
write_good_tree()
check("pages that are true" "")
check_breach("code of no example" ${a} "\n```cpp\nc();\n```\n" "no compiled example has this block")
check_breach("a part of a line" ${a} "\n```cpp\n[0] = 1;\n```\n" "no compiled example has this block")
check_breach("a marker that no page shows" examples/a.cpp "// [c]\nc();\n// [/c]\n" "no page shows [c]")
check_breach("a marker without end" examples/a.cpp "// [c]\nc();\n" "[c] has no end")
check_breach("a target" ${a} "\n```cmake\nx(onebit::cud)\n```\n" "there is no onebit::cud in CMake")
check_breach("an option" ${a} "\n```sh\ncmake -D ONEBIT_GPU=1\n```\n" "there is no ONEBIT_GPU in CMake")
check_breach("a script" ${a} "\n```sh\nexamples/b.sh\n```\n" "there is no examples/b.sh")
check_breach("a path in the text" ${a} "\n`tests/b.cpp`\n" "there is no tests/b.cpp")
check_breach("a header that was moved" ${a} "\n`papers/papers.hpp`\n" "there is no papers/papers.hpp")
check_breach("a block of no language" ${a} "\n```\nx\n```\n" "wanted cpp, c, cmake, sh or diff")
check_breach("a dead link" ${a} "\n[b](b.md)\n" "a dead link: b.md")
check_breach("a dead link from the top" README.md "\n[b](a.md)\n" "a dead link: a.md")
check_breach("a dead anchor" ${a} "\n[b](faults.md#g)\n" "has no heading for #g")
check_breach("a dead anchor of its own" ${a} "\n[b](#g)\n" "has no heading for #g")
check_breach("a page without a link" docs/b.md "# B\n" "does not link docs/b.md")
check_breach("a message" docs/faults.md "| `no bank` | x |\n" "no header says 'no bank'")
write_good_tree()
file(WRITE "${WORK_DIR}/README.md" "# Top\n")
check("an index that nobody links" "does not link docs/README.md")
file(REMOVE_RECURSE "${WORK_DIR}")
