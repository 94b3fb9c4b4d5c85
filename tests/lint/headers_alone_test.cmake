# Proves that runloom_add_headers_alone finds a header that needs another one first, or that can't be included
# twice, and lets a good one pass. Called with MODULES, WORK and CXX.

file(WRITE ${WORK}/CMakeLists.txt [[
cmake_minimum_required(VERSION 3.25)
project(planted LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH ${MODULES})
include(RunloomHeadersAlone)
add_library(layer INTERFACE)
target_include_directories(layer INTERFACE ${HEADERS})
runloom_add_headers_alone(alone ${HEADERS} layer)
]])

function(expect name outcome text)
  set(dir ${WORK}/${name})
  file(REMOVE_RECURSE ${dir})
  file(WRITE ${dir}/include/planted.hpp "${text}")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${WORK} -B ${dir}/build -D HEADERS=${dir}/include
      -D MODULES=${MODULES} -D CMAKE_CXX_COMPILER=${CXX}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "The planted project `${name}` can't be configured:\n${output}")
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${dir}/build
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result EQUAL 0 AND NOT outcome STREQUAL "passes")
    message(FATAL_ERROR "The planted fault `${name}` was not found:\n${output}")
  elseif(NOT result EQUAL 0 AND NOT outcome STREQUAL "fails")
    message(FATAL_ERROR "`${name}` should have compiled:\n${output}")
  endif()
endfunction()

expect(good passes "#pragma once\n#include <string>\ninline std::string name() { return {}; }\n")
expect(needs_another_header_first fails "#pragma once\ninline std::string name() { return {}; }\n")
expect(has_no_guard fails "struct Name {};\n")
