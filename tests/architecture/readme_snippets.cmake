# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# cmake -DSOURCE_DIR=<root> -P readme_snippets.cmake
#
# The code in README and in the guide is cut from compiled examples: what lies between `// [name]`
# and `// [/name]` must stand there letter for letter.

set(guide examples/guide/deepspeed.md)
foreach(pair IN ITEMS "embed.cpp=embed=README.md" "int8_per_tile.hpp=compressor=README.md"
                     "nccl_trainer.cu=cuda=README.md" "resume.cpp=resume=README.md"
                     "from_deepspeed.cpp=options=${guide}" "from_deepspeed.cpp=make=${guide}")
  string(REPLACE "=" ";" pair "${pair}")
  list(GET pair 0 file)
  list(GET pair 1 name)
  list(GET pair 2 page)
  file(READ "${SOURCE_DIR}/${page}" readme)
  file(READ "${SOURCE_DIR}/examples/${file}" text)
  string(FIND "${text}" "// [${name}]\n" first)
  string(FIND "${text}" "// [/${name}]" last)
  if(first EQUAL -1 OR last EQUAL -1)
    message(FATAL_ERROR "examples/${file} has no markers // [${name}] and // [/${name}]")
  endif()
  string(LENGTH "// [${name}]\n" marker)
  math(EXPR first "${first} + ${marker}")
  math(EXPR length "${last} - ${first}")
  string(SUBSTRING "${text}" ${first} ${length} snippet)
  string(STRIP "${snippet}" snippet)
  string(FIND "${readme}" "${snippet}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "${page} does not show ${name} as it is in examples/${file}; cut it anew")
  endif()
  message(STATUS "${name}: as in examples/${file}")
endforeach()
