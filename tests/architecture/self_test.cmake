# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Proves that include_directions.cmake passes a tree that keeps to its rules and finds each kind
# of breach, by breaking a copy of a small tree in one place at a time.
#
#   cmake -DWORK_DIR=<scratch folder> -P self_test.cmake

cmake_minimum_required(VERSION 3.25)

function(write_good_tree)
  file(REMOVE_RECURSE "${WORK_DIR}")
  set(tree "${WORK_DIR}/onebit")
  file(WRITE "${tree}/core/error.hpp" "#include <string>\n")
  file(WRITE "${tree}/concepts/rule.hpp" "#include <cstddef>\n")
  file(WRITE "${tree}/kernel/context.hpp" "#include <onebit/concepts/rule.hpp>\n")
  file(WRITE "${tree}/rule/adam.hpp" "#include \"../kernel/context.hpp\"\n")
  file(WRITE "${tree}/transport/communicator.hpp" "#include <onebit/concepts/rule.hpp>\n")
  file(WRITE "${tree}/transport/threads.hpp" "#include \"onebit/core/error.hpp\"\n")
  file(WRITE "${tree}/transport/mpi.hpp" "#include <mpi.h>\n")
  file(WRITE "${tree}/collective/dense_average.hpp" "#include <onebit/transport/communicator.hpp>\n")
  file(WRITE "${tree}/step/engine.hpp" "#include <onebit/collective/dense_average.hpp>\n")
  file(WRITE "${tree}/step/restore.hpp" "#include <onebit/step/engine.hpp>\n")
  file(WRITE "${tree}/optimizer.hpp" "#include <onebit/step/restore.hpp>\n")
  file(WRITE "${tree}/algorithms.hpp"
       "#include <onebit/optimizer.hpp>\n#include <onebit/rule/adam.hpp>\n")
  file(WRITE "${tree}/onebit.hpp" "// extras/by_name.hpp has make_optimizer\n#include <onebit/algorithms.hpp>\n")
  file(WRITE "${tree}/extras/by_name.hpp" "#include <onebit/algorithms.hpp>\n")
  file(WRITE "${tree}/c/onebit.h" "\n")
  file(WRITE "${tree}/torch/c10d.hpp" "#include <torch/csrc/c10d.hpp>\n")
endfunction()

function(check what expected)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" "-DINCLUDE_DIR=${WORK_DIR}" -P
            "${CMAKE_CURRENT_LIST_DIR}/include_directions.cmake"
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

# what, header to append to, text, message
function(check_breach what header text expected)
  write_good_tree()
  file(APPEND "${WORK_DIR}/onebit/${header}" "${text}")
  check("${what}" "${expected}")
endfunction()

write_good_tree()
check("a tree that keeps to the rules" "")

check_breach("a policy includes a policy" rule/adam.hpp "#include <onebit/transport/threads.hpp>\n"
             "rule may not include transport")
check_breach("a policy includes a policy, by a relative path" rule/adam.hpp
             "#  include \"../transport/threads.hpp\"\n" "rule may not include transport")
check_breach("core includes a policy" core/error.hpp "#include <onebit/rule/adam.hpp>\n"
             "core may not include rule")
check_breach("collective includes a transport" collective/dense_average.hpp
             "#include <onebit/transport/threads.hpp>\n" "collective may not include transport")
check_breach("rule includes the communicator" rule/adam.hpp "#include <onebit/transport/communicator.hpp>\n"
             "rule may not include communicator")
check_breach("the communicator includes a transport" transport/communicator.hpp "#include \"threads.hpp\"\n"
             "communicator may not include transport")
check_breach("a step includes a rule" step/engine.hpp "#include <onebit/rule/adam.hpp>\n"
             "step may not include rule")
check_breach("the core knows a moment" core/error.hpp "double beta1 = 0;\n"
             "names 'beta1', which is an optimizer's")
check_breach("collective includes optimizer" collective/dense_average.hpp
             "#include <onebit/optimizer.hpp>\n" "collective may not include optimizer")
check_breach("optimizer includes the umbrella" optimizer.hpp "#include <onebit/onebit.hpp>\n"
             "optimizer may not include onebit")
check_breach("the core includes an extra" onebit.hpp "#include <onebit/extras/by_name.hpp>\n"
             "onebit may not include by_name")
check_breach("the core names what an extra has" optimizer.hpp "struct option_map;\n"
             "names 'option_map', which is an extra's")
check_breach("MPI outside its folder" optimizer.hpp "#include <mpi.h>\n"
             "includes mpi.h, which belongs in transport/ alone")
check_breach("CUDA outside its folder" transport/threads.hpp "#include <cuda_runtime.h>\n"
             "includes cuda_runtime.h, which belongs in backend/ alone")
check_breach("torch outside its folder" step/engine.hpp "#include <ATen/ATen.h>\n"
             "includes ATen/ATen.h, but torch's headers belong in")
check_breach("the umbrella reaches torch" onebit.hpp "#include <onebit/torch/c10d.hpp>\n"
             "onebit/onebit.hpp: reaches torch.h")
check_breach("the umbrella reaches MPI" onebit.hpp "#include <onebit/transport/mpi.hpp>\n"
             "onebit/onebit.hpp: reaches mpi.h")
check_breach("an unknown folder" detail/misc.hpp "\n" "no rule knows the unit 'detail'")
check_breach("another file at the root" misc.hpp "\n" "no rule knows the unit 'misc'")
check_breach("a header that is not there" rule/adam.hpp "#include <onebit/core/layout.hpp>\n"
             "which does not exist")
check_breach("a comment on a header that is not there" rule/adam.hpp "/// See clip.hpp.\n"
             "a comment speaks of clip.hpp, which does not exist")
check_breach("a circle" concepts/rule.hpp "#include <onebit/kernel/context.hpp>\n"
             "includes, more than 15")
foreach(line IN ITEMS "auto s = std::to_string(x)" "std::snprintf(s, n, format, x)" "std::ostringstream s"
                      "std::to_chars(s, end, x)" "double x = strtod(s, &end)")
  check_breach("a number that becomes text elsewhere: ${line}" core/error.hpp "${line};\n"
               "formats or reads numbers by")
endforeach()
foreach(line IN ITEMS "out << x" "(in) >> x" "std::fprintf(stderr, \"%s has %d\\n\", s, n)" "std::cout << x")
  check_breach("a number by a stream or printf: ${line}" core/error.hpp "${line};\n"
               "follows a locale if it is a number")
endforeach()
write_good_tree()
file(APPEND "${WORK_DIR}/onebit/core/error.hpp"
     "int x = 1 << 3; std::fprintf(stderr, \"%s\\n\", s); out.write(s, n); /* as snprintf */\n")
check("texts, bytes and shifts" "")
string(REPEAT "// a line; with [brackets\n" 600 long)
check_breach("a long header" rule/adam.hpp "${long}" "has 601 lines, more than 600")
