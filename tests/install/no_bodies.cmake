# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# OBJECT has no body of what onebit::compiled compiles; WITH_THEM, which is compiled without that, has.
# OF is the transport of OBJECT.
#
#   cmake -DNM= -DOBJECT= -DWITH_THEM= -DOF= -P no_bodies.cmake

cmake_minimum_required(VERSION 3.22)

# Calls of the optimizer that are not inline, what they call, and what makes an optimizer.
set(compiled "::optimizer<[^\n]*>::(run_step|begin|ready|settle|save|load|verify|~optimizer)\\("
    "::detail::engine<[^\n]*>::" "::detail::[a-z_]+_over<" "::host::run_(portable|avx2)<")

function(bodies object result)
  execute_process(COMMAND "${NM}" -C "${object}" OUTPUT_VARIABLE names COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "[][;\\\\]" "_" names "\n${names}")
  string(REGEX REPLACE "\n *[Uw] [^\n]*" "" names "${names}") # those that it takes from others
  set(${result} "${names}" PARENT_SCOPE)
endfunction()

bodies("${OBJECT}" without)
bodies("${WITH_THEM}" with)
foreach(body IN LISTS compiled)
  if(without MATCHES "\n[^\n]*${body}[^\n]*")
    message(FATAL_ERROR "${OBJECT} compiles what onebit::compiled has:${CMAKE_MATCH_0}")
  elseif(NOT with MATCHES "${body}")
    message(FATAL_ERROR "${WITH_THEM} has nothing of ${body}, so that this finds nothing")
  endif()
endforeach()
if(without MATCHES "\n[^\n]* [^\n]*transport_holder<[^\n]*${OF}[^\n]*>::start\\([^\n]*")
  message(FATAL_ERROR "${OBJECT} compiles the transport:${CMAKE_MATCH_0}")
endif()
