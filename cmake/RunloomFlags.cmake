# Compiler flags. Only what every consumer must share (the language level, RUNLOOM_DEBUG) is public; the
# rest belongs to our own targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
# The static libraries end up in the Python module, so everything is position independent.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# Frame pointers let a fiber dump and a profiler walk a stack that no unwinder knows. They are wanted in
# every file of a program, so they are not tied to a target.
add_compile_options(-fno-omit-frame-pointer)

if(RUNLOOM_LTO)
  # Builds and links a small library: a compiler may have the flag and no linker for it.
  include(CheckIPOSupported)
  check_ipo_supported(RESULT RUNLOOM_LTO_WORKS OUTPUT _ipo_output LANGUAGES C CXX)
  if(RUNLOOM_LTO_WORKS)
    set(CMAKE_INTERPROCEDURAL_OPTIMIZATION ON)
  else()
    message(STATUS "No optimisation at link time: the compiler or its linker can't")
  endif()
endif()

if(RUNLOOM_SANITIZE)
  add_compile_options(-fsanitize=${RUNLOOM_SANITIZE})
  add_link_options(-fsanitize=${RUNLOOM_SANITIZE})
  if(RUNLOOM_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=all)
    # The vptr check probes memory through a pipe, and takes a process without a free descriptor for
    # a bad object: it would fail the tests of what happens then.
    add_compile_options(-fno-sanitize=vptr)
  endif()
endif()

if(RUNLOOM_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Each compiler version has warnings of its own. Only those that the project is kept clean under may fail a build;
# a newer compiler on somebody's machine just warns.
set(RUNLOOM_WARNINGS_ARE_ERRORS OFF)
if(RUNLOOM_WERROR)
  if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
     OR (CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15))
    set(RUNLOOM_WARNINGS_ARE_ERRORS ON)
  else()
    message(STATUS "Warnings are errors only with gcc 12 and clang 14, so not with "
                   "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  endif()
endif()

# Warnings for one of our targets.
function(runloom_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow)
  if(RUNLOOM_WARNINGS_ARE_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(RUNLOOM_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # gcc warns of every std::atomic_thread_fence under tsan, which does not model fences.
    target_compile_options(${target} PRIVATE -Wno-tsan)
  endif()
endfunction()
