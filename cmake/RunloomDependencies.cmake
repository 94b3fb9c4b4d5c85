# What the core needs from the system. All that is missing is told at once, with what installs it.

find_package(Threads REQUIRED)
find_package(Boost 1.74 QUIET COMPONENTS context)
find_package(OpenSSL 3.0 QUIET COMPONENTS SSL Crypto)
# liburing has no CMake package of its own on the oldest supported systems, nor has c-ares in Debian's package.
find_path(RUNLOOM_LIBURING_INCLUDE liburing.h)
find_library(RUNLOOM_LIBURING uring)
find_path(RUNLOOM_CARES_INCLUDE ares.h)
find_library(RUNLOOM_CARES cares)

set(missing)
if(NOT Boost_FOUND)
  list(APPEND missing libboost-context-dev)
endif()
if(NOT OpenSSL_FOUND)
  list(APPEND missing libssl-dev)
endif()
if(NOT RUNLOOM_LIBURING_INCLUDE OR NOT RUNLOOM_LIBURING)
  list(APPEND missing liburing-dev)
endif()
if(NOT RUNLOOM_CARES_INCLUDE OR NOT RUNLOOM_CARES)
  list(APPEND missing libc-ares-dev)
endif()
if(missing)
  list(JOIN missing " " missing)
  message(FATAL_ERROR "runloom needs libraries that were not found, or are too old. On Debian and Ubuntu:\n"
    "  sudo apt-get install ${missing}\n"
    "docs/dependencies.md has the versions.")
endif()

# c-ares is linked by its name, as who uses the installed libraries does; it may stand elsewhere than the system's.
cmake_path(GET RUNLOOM_CARES PARENT_PATH cares_directory)
link_directories(${cares_directory})
include_directories(SYSTEM ${RUNLOOM_CARES_INCLUDE})
