# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# cmake -DSOURCE_DIR=<root> -P pages.cmake
#
# What the Markdown pages say must be there; names every breach.
#
# - A block of C or C++ stands in a compiled example, but for how far it is indented, and what lies in
#   an example between `// [name]` and `// [/name]` stands in a page.
# - Blocks of CMake and of the shell name targets, options and files that there are.
# - What faults.md quotes in its table of messages stands in the headers.
# - Relative links lead to a file, and to a heading in it; `tests/a/path.cpp` is there, too.
# - Headers that a page names exist.
# - README.md links the guide's index, and the index links each page beside it.

cmake_minimum_required(VERSION 3.25)

macro(breach)
  message(SEND_ERROR "${ARGN}")
endmacro()

# Without indentation, so that a block may be cut out of anything.
function(flat text result)
  string(REGEX REPLACE "\n[ \t]+" "\n" text "\n${text}")
  string(REGEX REPLACE "[ \t]+\n" "\n" text "${text}")
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# The text of files, one after the other.
function(read_all result)
  set(all "")
  foreach(file IN LISTS ARGN)
    file(READ "${file}" text)
    string(APPEND all "${text}\n")
  endforeach()
  set(${result} "${all}" PARENT_SCOPE)
endfunction()

# Takes what stands before `mark` off `text`, and the mark; `found` tells whether it is there.
macro(take_up_to mark text before found)
  string(FIND "${${text}}" "${mark}" at)
  set(${found} FALSE)
  if(NOT at EQUAL -1)
    set(${found} TRUE)
    string(SUBSTRING "${${text}}" 0 ${at} ${before})
    string(LENGTH "${mark}" length)
    math(EXPR at "${at} + ${length}")
    string(SUBSTRING "${${text}}" ${at} -1 ${text})
  endif()
endmacro()

# -- what is there -------------------------------------------------------------------------------

set(guide docs)
file(GLOB_RECURSE files "${SOURCE_DIR}/examples/*.cpp" "${SOURCE_DIR}/examples/*.hpp" "${SOURCE_DIR}/bench/own_contender.cpp"
     "${SOURCE_DIR}/examples/*.cu" "${SOURCE_DIR}/examples/*.c" "${SOURCE_DIR}/examples/*.h")
set(examples ${files})
read_all(text ${files})
flat("${text}" example_text)
file(GLOB files "${SOURCE_DIR}/CMakeLists.txt" "${SOURCE_DIR}/cmake/*"
     "${SOURCE_DIR}/tests/install/CMakeLists.txt")
read_all(cmake_text ${files})
file(GLOB_RECURSE files "${SOURCE_DIR}/include/*.hpp" "${SOURCE_DIR}/include/*.cuh")
read_all(header_text ${files})
string(REGEX REPLACE "\",?[ \n]*\"" "" header_text "${header_text}") # literals side by side

# -- blocks of code ------------------------------------------------------------------------------

function(check_block page language code)
  if(language MATCHES "^(cpp|c)$")
    flat("${code}" code)
    string(STRIP "${code}" code)
    string(FIND "${example_text}" "\n${code}\n" at)
    if(at EQUAL -1)
      breach("${page}: no compiled example has this block:\n${code}")
    endif()
  elseif(language MATCHES "^(cmake|sh)$")
    string(REGEX REPLACE "#[^\n]*" "" code "${code}")
    string(REGEX MATCHALL "onebit::[a-z]+|ONEBIT_[A-Z_]+|COMPONENTS [a-z]+" names "${code}")
    foreach(name IN LISTS names)
      string(REPLACE "COMPONENTS " "APPEND components " name "${name}")
      if(NOT cmake_text MATCHES "${name}[^A-Za-z_]")
        breach("${page}: there is no ${name} in CMake's files")
      endif()
    endforeach()
    string(REGEX MATCHALL "(^|[ \n])(\\./)?(examples|tests|bench|[.]ci|include)/[A-Za-z0-9_./-]+"
                          names "${code}")
    foreach(name IN LISTS names)
      string(STRIP "${name}" name)
      if(NOT EXISTS "${SOURCE_DIR}/${name}")
        breach("${page}: there is no ${name}")
      endif()
    endforeach()
  elseif(NOT language STREQUAL "diff") # what a trainer had, and has: prose
    breach("${page}: a block in '${language}': wanted cpp, c, cmake, sh or diff; indent what is printed")
  endif()
endfunction()

# Checks the blocks of a page; gives what lies around them.
function(check_blocks page text result)
  set(prose "")
  set(found TRUE)
  while(found)
    take_up_to("\n```" text before found)
    if(found)
      string(APPEND prose "${before}\n")
      take_up_to("\n" text language found)
      take_up_to("\n```" text code found)
      check_block("${page}" "${language}" "${code}")
    endif()
  endwhile()
  set(${result} "${prose}${text}" PARENT_SCOPE)
endfunction()

# -- links ---------------------------------------------------------------------------------------

# The anchor of each heading, as it is made from its words; a line each.
function(read_anchors text result)
  set(anchors "\n")
  set(found TRUE)
  while(found)
    take_up_to("\n#" text before found)
    if(found)
      string(FIND "${text}" "\n" end)
      string(SUBSTRING "${text}" 0 ${end} heading)
      string(REGEX REPLACE "^#* +" "" heading "${heading}")
      string(TOLOWER "${heading}" heading)
      string(REGEX REPLACE "[^a-z0-9 _-]" "" heading "${heading}")
      string(REPLACE " " "-" heading "${heading}")
      string(APPEND anchors "${heading}\n")
    endif()
  endwhile()
  set(${result} "${anchors}" PARENT_SCOPE)
endfunction()

# All files that a page's prose links, as paths from the root.
function(check_links page prose result)
  string(REGEX MATCHALL "`(tests|examples|bench|include)/[a-z0-9_./-]+`" paths "${prose}")
  foreach(path IN LISTS paths)
    string(REPLACE "`" "" path "${path}")
    if(NOT EXISTS "${SOURCE_DIR}/${path}" AND NOT path MATCHES "[.][.][.]")
      breach("${page}: there is no ${path}")
    endif()
  endforeach()
  string(REGEX REPLACE "`[^`\n]*`" "" prose "${prose}")
  cmake_path(GET page PARENT_PATH folder)
  set(linked "")
  set(found TRUE)
  while(found)
    take_up_to("](" prose before found)
    if(NOT found)
      break()
    endif()
    take_up_to(")" prose target closed)
    if(target MATCHES "^(https?|mailto):")
      continue()
    endif()
    set(anchor "")
    if(target MATCHES "^([^#]*)#(.*)$")
      set(target "${CMAKE_MATCH_1}")
      set(anchor "${CMAKE_MATCH_2}")
    endif()
    set(path "${folder}/${target}")
    if(target STREQUAL "")
      set(path "${page}")
    endif()
    set(full "${SOURCE_DIR}/${path}")
    cmake_path(NORMAL_PATH full)
    cmake_path(RELATIVE_PATH full BASE_DIRECTORY "${SOURCE_DIR}" OUTPUT_VARIABLE path)
    if(NOT EXISTS "${full}")
      breach("${page}: a dead link: ${target}")
    elseif(NOT anchor STREQUAL "")
      file(READ "${full}" text)
      read_anchors("${text}" anchors)
      string(FIND "${anchors}" "\n${anchor}\n" at)
      if(at EQUAL -1)
        breach("${page}: ${path} has no heading for #${anchor}")
      endif()
    endif()
    list(APPEND linked "${path}")
  endwhile()
  set(${result} "${linked}" PARENT_SCOPE)
endfunction()

# Headers that a page names in backquotes, `folder/name.hpp`, exist: beside the page, in the source, or
# under include/. (The changelog speaks of those that were.)
function(check_headers page text)
  if(page STREQUAL "CHANGELOG.md")
    return()
  endif()
  get_filename_component(folder "${page}" DIRECTORY)
  string(REGEX MATCHALL "`([a-z0-9_]+/)+[a-z0-9_]+\\.(hpp|cuh|h)`" named "${text}")
  foreach(name IN LISTS named)
    string(REPLACE "`" "" name "${name}")
    set(found FALSE)
    foreach(place IN ITEMS "${folder}" "" include include/onebit)
      if(EXISTS "${SOURCE_DIR}/${place}/${name}")
        set(found TRUE)
      endif()
    endforeach()
    if(NOT found)
      breach("${page}: there is no ${name}")
    endif()
  endforeach()
endfunction()

# -- the pages -----------------------------------------------------------------------------------

file(GLOB_RECURSE pages RELATIVE "${SOURCE_DIR}" "${SOURCE_DIR}/*.md")
list(FILTER pages EXCLUDE REGEX "^build/")
set(page_text "")
foreach(page IN LISTS pages)
  file(READ "${SOURCE_DIR}/${page}" text)
  check_blocks("${page}" "${text}" prose)
  check_links("${page}" "${prose}" links_of_${page})
  check_headers("${page}" "${text}")
  flat("${text}" text)
  string(APPEND page_text "${text}\n")
endforeach()

if(NOT "${guide}/README.md" IN_LIST links_of_README.md)
  breach("README.md does not link ${guide}/README.md")
endif()
foreach(page IN LISTS pages)
  if(page MATCHES "^${guide}/" AND NOT page STREQUAL "${guide}/README.md"
     AND NOT page IN_LIST links_of_${guide}/README.md)
    breach("${guide}/README.md does not link ${page}")
  endif()
endforeach()

# -- what examples mark --------------------------------------------------------------------------

foreach(file IN LISTS examples)
  cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${SOURCE_DIR}" OUTPUT_VARIABLE name)
  file(READ "${file}" text)
  while(text MATCHES "\n[ ]*(//|/[*]) \\[([a-z_]+)\\]( [*]/)?\n")
    set(marker "${CMAKE_MATCH_2}")
    take_up_to("${CMAKE_MATCH_0}" text before found)
    if(NOT text MATCHES "\n[ ]*(//|/[*]) \\[/${marker}\\]")
      breach("${name}: [${marker}] has no end")
      break()
    endif()
    take_up_to("${CMAKE_MATCH_0}" text snippet found)
    flat("${snippet}" snippet)
    string(STRIP "${snippet}" snippet)
    string(FIND "${page_text}" "${snippet}" at)
    if(at EQUAL -1)
      breach("${name}: no page shows [${marker}] as it is; cut it anew")
    endif()
  endwhile()
endforeach()

# -- messages ------------------------------------------------------------------------------------

if(EXISTS "${SOURCE_DIR}/${guide}/faults.md")
  file(READ "${SOURCE_DIR}/${guide}/faults.md" text)
  take_up_to("\n| message |" text before found)
  if(NOT found)
    breach("${guide}/faults.md has no table of messages")
  endif()
  while(found)
    take_up_to("\n| `" text before found)
    if(found)
      take_up_to("`" text quoted found)
      string(FIND "${header_text}" "${quoted}" at)
      if(at EQUAL -1)
        breach("${guide}/faults.md: no header says '${quoted}'")
      endif()
    endif()
  endwhile()
endif()

list(LENGTH pages n)
message(STATUS "${n} pages looked at")
