# runloom_add_headers_alone(target include_dir link_target)
#
# An object library that compiles each header under include_dir alone: one generated source a header, which
# includes nothing else (and includes it twice, so that a missing include guard shows).
function(runloom_add_headers_alone target include_dir link_target)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${include_dir} ${include_dir}/*.hpp)
  if(NOT headers)
    return()
  endif()
  set(sources "")
  foreach(header IN LISTS headers)
    string(MAKE_C_IDENTIFIER ${header} stem)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/${target}/${stem}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@header@\"\n#include \"@header@\"\n" @ONLY)
    list(APPEND sources ${source})
  endforeach()
  add_library(${target} OBJECT ${sources})
  target_link_libraries(${target} PRIVATE ${link_target})
endfunction()
