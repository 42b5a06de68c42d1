# The compiler flags every target of ours shares, as one interface library: gradring_flags.
add_library(gradring_flags INTERFACE)

# -ffp-contract=off: a*b+c is never fused behind our back, so that one source gives the same bits on every machine.
target_compile_options(gradring_flags INTERFACE
  -ffp-contract=off -fvisibility=hidden -fvisibility-inlines-hidden
  -Wall -Wextra -Wconversion -Wshadow
  $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>)  # Part of -Wconversion there, and not of gcc's for C++.
if(GRADRING_WERROR)
  target_compile_options(gradring_flags INTERFACE -Werror)
endif()

# Checks of undefined behaviour are made of our own code, not of what only drives it in tests (GRADRING_ONLY_DRIVES):
# they double the time to compile it.
if(GRADRING_SANITIZE STREQUAL "address")
  set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  set(sanitize_except "$<$<BOOL:$<TARGET_PROPERTY:GRADRING_ONLY_DRIVES>>:-fno-sanitize=undefined>")
elseif(GRADRING_SANITIZE STREQUAL "thread")
  set(sanitize -fsanitize=thread -fno-omit-frame-pointer)
elseif(NOT GRADRING_SANITIZE STREQUAL "")
  message(FATAL_ERROR "GRADRING_SANITIZE is '${GRADRING_SANITIZE}'; it can be empty, address or thread.")
endif()
if(sanitize)
  target_compile_options(gradring_flags INTERFACE ${sanitize} ${sanitize_except})
  target_link_options(gradring_flags INTERFACE ${sanitize})
endif()
# What a fuzzer finds its way by: which branches an input has reached, in the library too.
if(GRADRING_FUZZ)
  target_compile_options(gradring_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
